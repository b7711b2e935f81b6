// Requests: which pages are missing, their reads, and who holds what until when.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "io/hash.h"
#include "kv/tiers.h"

namespace farsight {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

KvTiers::Fetch* KvTiers::NewFetch(int32_t layer) {
  size_t i = 0;
  while (i < fetches_.size() && fetches_[i].live) ++i;
  if (i == fetches_.size()) fetches_.emplace_back();
  Fetch& f = fetches_[i];
  ++f.generation;
  f.live = true;
  f.loaded = false;
  f.layer = layer;
  f.start_ns = NowNs();
  f.done_ns = 0;
  f.held.clear();
  f.misses.clear();
  f.reads.clear();
  f.status = OkStatus();
  return &f;
}

KvTiers::Fetch& KvTiers::FetchOf(FetchTicket ticket) {
  FS_CHECK(ticket.index >= 0 && static_cast<size_t>(ticket.index) < fetches_.size(), "a ticket comes from Request");
  Fetch& f = fetches_[static_cast<size_t>(ticket.index)];
  FS_CHECK(f.live && f.generation == ticket.generation, "a ticket is finished once");
  return f;
}

StatusOr<FetchTicket> KvTiers::Request(int32_t layer, std::span<const int32_t> pages) {
  CheckStep(layer, {});
  PollReads();
  Fetch* f = NewFetch(layer);
  Status status = Pin(f, pages);
  if (status.ok()) status = TakeSlotsForMisses(f);
  if (!status.ok()) {
    Close(f);
    return status;
  }
  TierCounters& c = counters_[static_cast<size_t>(layer)];
  c.selected += f->held.size();
  c.missed += f->misses.size();
  c.hit += f->held.size() - f->misses.size();
  QueueReads(f);
  return FetchTicket{static_cast<int32_t>(f - fetches_.data()), f->generation};
}

// Holds the pages that are in memory, before room for the others is made, and lists the others.
Status KvTiers::Pin(Fetch* fetch, std::span<const int32_t> pages) {
  if (++seen_mark_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    seen_mark_ = 1;
  }
  for (const int32_t page : pages) {
    if (page < 0 || page >= pages_) {
      return Internal("page " + std::to_string(page) + " was asked for; there are " + std::to_string(pages_));
    }
    if (std::exchange(seen_[static_cast<size_t>(page)], seen_mark_) == seen_mark_) continue;
    const size_t i = PageIndex(fetch->layer, page);
    Touch(fetch->layer, page);
    if (const int32_t slot = where_[i]; slot >= 0) {
      if (SlotOf(slot).pins++ == 0) retention_.Hold(slot);
      fetch->held.push_back({page, slot, SlotOf(slot).generation});
    } else if (in_file_[i] != 0) {
      fetch->misses.push_back({PlaceOf(BlockOf(page)).store, page, -1, OffsetOf(fetch->layer, page)});
    } else {
      return Internal("KV block " + std::to_string(BlockOf(page)) + " was asked for before it was written in layer " +
                      std::to_string(fetch->layer));
    }
  }
  return OkStatus();
}

Status KvTiers::TakeSlotsForMisses(Fetch* fetch) {
  const auto index = static_cast<int32_t>(fetch - fetches_.data());
  for (size_t m = 0; m < fetch->misses.size(); ++m) {
    auto slot = TakeSlot(fetch->layer);
    if (!slot.ok()) {
      for (size_t i = 0; i < m; ++i) FreeSlot(fetch->misses[i].slot);
      return OnlyUseFills() ? NoRoom(static_cast<int64_t>(fetch->misses.size() - m)) : slot.status();
    }
    Miss& miss = fetch->misses[m];
    miss.slot = *slot;
    Assign(*slot, fetch->layer, miss.page, SlotState::kLoading);
    SlotOf(*slot).pins = 1;
    SlotOf(*slot).loader = index;
    fetch->held.push_back({miss.page, *slot, SlotOf(*slot).generation});
  }
  return OkStatus();
}

// By place, so that neighbours in the file become one operation whatever the order of the list.
void KvTiers::QueueReads(Fetch* fetch) {
  auto& misses = fetch->misses;
  if (misses.empty()) {
    fetch->loaded = true;
    return;
  }
  std::sort(misses.begin(), misses.end(),
            [](const Miss& a, const Miss& b) { return a.store != b.store ? a.store < b.store : a.offset < b.offset; });
  for (size_t first = 0; first < misses.size();) {
    pieces_.clear();
    size_t end = first;
    for (; end < misses.size() && misses[end].store == misses[first].store; ++end) {
      pieces_.push_back({misses[end].offset, SlotData(misses[end].slot), o_.page_bytes});
    }
    const int32_t store = misses[first].store;
    const IoTicket ticket = stores_[static_cast<size_t>(store)]->file().Queue(IoKind::kRead, pieces_);
    fetch->reads.push_back({store, first, end - first, ticket});
    first = end;
  }
}

void KvTiers::Submit() {
  for (BlockStore* store : stores_) {
    if (store != nullptr) store->file().Submit();
  }
}

void KvTiers::PollReads() {
  for (auto& f : fetches_) {
    if (!f.live || f.loaded || f.done_ns != 0) continue;
    const bool done = std::all_of(f.reads.begin(), f.reads.end(), [this](const Read& r) {
      return stores_[static_cast<size_t>(r.store)]->file().Done(r.ticket);
    });
    if (done) f.done_ns = NowNs();
  }
}

void KvTiers::FinishReads(Fetch* fetch) {
  if (fetch->loaded) return;
  fetch->loaded = true;
  const int64_t before = NowNs();
  for (const Read& read : fetch->reads) FinishRead(fetch, read);
  const int64_t now = NowNs();
  TierCounters& c = counters_[static_cast<size_t>(fetch->layer)];
  c.waited_ns += static_cast<uint64_t>(now - before);
  const int64_t done = fetch->done_ns != 0 ? fetch->done_ns : before;
  c.hidden_ns += static_cast<uint64_t>(std::max<int64_t>(done - fetch->start_ns, 0));
}

void KvTiers::FinishRead(Fetch* fetch, const Read& read) {
  AsyncFile& file = stores_[static_cast<size_t>(read.store)]->file();
  const bool whole = file.Wait(read.ticket).ok();
  TierCounters& c = counters_[static_cast<size_t>(fetch->layer)];
  for (size_t i = read.first; i < read.first + read.count; ++i) {
    const Miss& m = fetch->misses[i];
    std::byte* data = SlotData(m.slot);
    const size_t index = PageIndex(fetch->layer, m.page);
    // One bad page must not fail its neighbours: after an error each is read alone.
    const IoPiece piece = {m.offset, data, o_.page_bytes};
    Status status = whole ? OkStatus() : file.Transfer(IoKind::kRead, {&piece, 1});
    if (status.ok() && Checksum({data, o_.page_bytes}) != sums_[index]) {
      status = DataLoss("the KV page of block " + std::to_string(BlockOf(m.page)) + ", layer " +
                        std::to_string(fetch->layer) + ", at " + std::to_string(m.offset) + " of '" + file.path() +
                        "' does not match its checksum");
    }
    if (!status.ok()) {
      ++c.failed;
      FreeSlot(m.slot);
      if (fetch->status.ok()) fetch->status = std::move(status);
      continue;
    }
    Slot& s = SlotOf(m.slot);
    s.state = SlotState::kClean;
    s.loader = -1;
    visible_[index] = m.slot;
    c.bytes_read += o_.page_bytes;
  }
}

Status KvTiers::Wait(FetchTicket ticket) {
  Fetch& f = FetchOf(ticket);
  FinishReads(&f);
  Status status = f.status;
  for (size_t i = 0; i < f.held.size() && status.ok(); ++i) {
    const Held h = f.held[i];
    const auto gone = [&] { return SlotOf(h.slot).generation != h.generation; };
    if (!gone() && SlotOf(h.slot).state == SlotState::kLoading) {  // another request reads it
      Fetch& loader = fetches_[static_cast<size_t>(SlotOf(h.slot).loader)];
      FinishReads(&loader);
      if (gone()) status = loader.status;
    }
    if (status.ok() && gone()) {
      status = DataLoss("the KV page of block " + std::to_string(BlockOf(h.page)) + ", layer " +
                        std::to_string(f.layer) + ", could not be read");
    }
  }
  if (!status.ok()) Close(&f);
  return status;
}

void KvTiers::Finish(FetchTicket ticket) {
  Fetch& f = FetchOf(ticket);
  FinishReads(&f);
  Close(&f);
}

void KvTiers::Close(Fetch* fetch) {
  for (const Held& h : fetch->held) {
    Slot& s = SlotOf(h.slot);
    if (s.generation != h.generation || s.pins == 0) continue;
    if (--s.pins == 0 && s.state == SlotState::kClean) {
      retention_.Offer(h.slot, s.layer, scores_[PageIndex(s.layer, s.page)]);
    }
  }
  fetch->live = false;
}

}  // namespace farsight
