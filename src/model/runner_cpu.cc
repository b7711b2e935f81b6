#include "model/loaded-inl.h"
#include "ops/cpu/cpu_backend.h"

namespace farsight {
namespace {

class LoadedCpu final : public Loaded<CpuBackend> {
 public:
  using Loaded::Loaded;
  std::string backend_name() const override { return std::string("cpu/") + IsaName(backend().isa()); }
  int threads() const override { return backend().num_threads(); }
  void SetThreads(int threads) override { backend().SetThreads(threads); }
};

}  // namespace

StatusOr<std::unique_ptr<LoadedModel>> LoadOnCpu(const ModelFile& file, const ModelConfig& config, WeightNames names,
                                                 int threads, const std::string& isa) {
  FS_ASSIGN_OR_RETURN(const Isa wanted, ParseIsa(isa));
  FS_ASSIGN_OR_RETURN(auto backend, CpuBackend::Create(threads, wanted));
  auto loaded = std::make_unique<LoadedCpu>(std::move(backend), config);
  FS_RETURN_IF_ERROR(loaded->Load(file, names));
  return std::unique_ptr<LoadedModel>(std::move(loaded));
}

}  // namespace farsight
