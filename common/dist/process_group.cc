#include "common/dist/process_group.h"

#include <algorithm>
#include <utility>

#include "common/dist/c10d_group.h"

namespace taopd {
namespace {

// The world of one.
class LoneProcess final : public ProcessGroup {
 public:
  LoneProcess() : ProcessGroup(Rendezvous()) {}
  WorkPtr StartAllReduce(at::Tensor, Reduction) override { return Finished(); }
  WorkPtr StartAllGather(at::Tensor output, at::Tensor input) override {
    return Copy(output, input);
  }
  WorkPtr StartAllToAll(at::Tensor output, at::Tensor input) override {
    return Copy(output, input);
  }
  WorkPtr StartBroadcast(at::Tensor, int64_t) override { return Finished(); }
  absl::Status health() const override { return absl::OkStatus(); }
  void Fail(const absl::Status&) override {}
  void Leave() override {}
  void RequestStop(int) override {}
  void OnStop(std::function<void(int)>) override {}

 protected:
  absl::Status ReduceWithoutTimeout(const at::Tensor&) override { return absl::OkStatus(); }

 private:
  static WorkPtr Copy(const at::Tensor& output, const at::Tensor& input) {
    if (!output.is_alias_of(input)) output.view(-1).copy_(input.view(-1));
    return Finished();
  }
};

}  // namespace

std::unique_ptr<ProcessGroup> ProcessGroup::Alone() { return std::make_unique<LoneProcess>(); }

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Connect(
    const Rendezvous& rendezvous, const ProcessGroupOptions& options) {
  if (rendezvous.world_size == 1) return Alone();
  return ConnectC10dGroup(rendezvous, options);
}

ProcessGroup::WorkPtr ProcessGroup::Finished(absl::Status status) {
  class EndedWork final : public Work {
   public:
    explicit EndedWork(absl::Status status) : status_(std::move(status)) {}
    absl::Status Wait() override { return status_; }

   private:
    const absl::Status status_;
  };
  return std::make_unique<EndedWork>(std::move(status));
}

absl::Status ProcessGroup::AllReduce(const at::Tensor& tensor, Reduction reduction) {
  return StartAllReduce(tensor, reduction)->Wait();
}
absl::Status ProcessGroup::AllGather(const at::Tensor& output, const at::Tensor& input) {
  return StartAllGather(output, input)->Wait();
}
absl::Status ProcessGroup::AllToAll(const at::Tensor& output, const at::Tensor& input) {
  return StartAllToAll(output, input)->Wait();
}
absl::Status ProcessGroup::Broadcast(const at::Tensor& tensor, int64_t root) {
  return StartBroadcast(tensor, root)->Wait();
}

absl::StatusOr<std::string> ProcessGroup::BroadcastText(const std::string& text, int64_t root) {
  if (world_size() == 1) return text;
  const at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  TAOPD_RETURN_IF_ERROR(Broadcast(size, root));
  const auto num_bytes = size.item<int64_t>();
  if (num_bytes == 0) return std::string();
  const at::Tensor bytes = at::empty({num_bytes}, at::kByte);
  if (rank() == root) std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  TAOPD_RETURN_IF_ERROR(Broadcast(bytes, root));
  const auto* data = bytes.const_data_ptr<uint8_t>();
  return std::string(data, data + num_bytes);
}

absl::StatusOr<std::vector<int64_t>> ProcessGroup::GatherWithoutTimeout(int64_t mine) {
  const at::Tensor numbers = at::zeros({world_size()}, at::kLong);
  numbers[rank()] = mine;
  TAOPD_RETURN_IF_ERROR(ReduceWithoutTimeout(numbers));
  const int64_t* data = numbers.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + world_size());
}

absl::StatusOr<int64_t> ProcessGroup::AgreeOnLargest(int64_t mine) {
  if (world_size() == 1) return mine;
  TAOPD_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, GatherWithoutTimeout(mine));
  return *std::max_element(numbers.begin(), numbers.end());
}

absl::Status ProcessGroup::AgreeOnStatus(const absl::Status& mine) {
  if (world_size() == 1) return mine;
  TAOPD_ASSIGN_OR_RETURN(const std::vector<int64_t> codes,
                         GatherWithoutTimeout(static_cast<int64_t>(mine.code())));
  const auto first = std::find_if(codes.begin(), codes.end(), [](int64_t c) { return c != 0; });
  if (first == codes.end()) return absl::OkStatus();
  const int64_t failed = first - codes.begin();
  TAOPD_ASSIGN_OR_RETURN(const std::string message,
                         BroadcastText(std::string(mine.message()), failed));
  return absl::Status(static_cast<absl::StatusCode>(*first),
                      Concat("rank ", failed, ": ", message));
}

}  // namespace taopd
