#include "model/loaded-inl.h"
#include "ops/ref/ref_backend.h"

namespace farsight {
namespace {

class LoadedReference final : public Loaded<RefBackend> {
 public:
  using Loaded::Loaded;
  std::string backend_name() const override { return "reference"; }
  int threads() const override { return 1; }
  void SetThreads(int) override {}
};

}  // namespace

void Batch::Clear() { *this = Batch(); }

StatusOr<std::unique_ptr<LoadedModel>> LoadOnReference(const ModelFile& file, const ModelConfig& config,
                                                       WeightNames names) {
  auto loaded = std::make_unique<LoadedReference>(std::make_unique<RefBackend>(), config);
  FS_RETURN_IF_ERROR(loaded->Load(file, names));
  return std::unique_ptr<LoadedModel>(std::move(loaded));
}

}  // namespace farsight
