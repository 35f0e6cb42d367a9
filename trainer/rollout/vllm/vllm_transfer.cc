#include "trainer/rollout/vllm/vllm_transfer.h"

#include <absl/strings/escaping.h>

#include <chrono>
#include <future>
#include <nlohmann/json.hpp>

#include "common/model/config/dtype.h"

namespace taopd {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kEmptyRequest[] = "{}";

absl::StatusOr<std::string> UpdateBody(const SafetensorsModel& model) {
  OrderedJson names = OrderedJson::array(), types = OrderedJson::array(),
              shapes = OrderedJson::array();
  for (const auto& [name, tensor] : model.tensors) {
    const std::optional<DataType> type = DataTypeOfSafetensors(tensor.first.dtype);
    if (!type) {
      return InvalidArgument("rollout.weight_transfer = nccl: a tensor has the type ",
                             tensor.first.dtype, ", not F32, BF16 or F16");
    }
    names.push_back(name);
    types.push_back(ConfigDtype(*type));  // PyTorch's name
    shapes.push_back(tensor.first.shape);
  }
  return OrderedJson{
      {"update_info", {{"names", names}, {"dtype_names", types}, {"shapes", shapes}}}}
      .dump();
}

absl::StatusOr<int64_t> WorldSizeOf(const std::string& reply) {
  const auto json = nlohmann::json::parse(reply, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("world_size") && json["world_size"].is_number_integer()) {
    const auto size = json["world_size"].get<int64_t>();
    if (size >= 1 && size <= 65536) return size;
  }
  return DataLoss("vLLM's reply: no world_size in [1, 65536]");
}

}  // namespace

absl::Status VllmTransfer::WorkDuringRequest(
    const std::string& path, const std::string& body, const std::stop_token& stop,
    const std::function<absl::Status(const WeightBroadcast::KeepWaiting&)>& work) {
  std::stop_source ended;
  const std::stop_callback forward(stop, [&] { ended.request_stop(); });
  std::future<absl::Status> reply =
      std::async(std::launch::async, [&] { return ask_(path, body, ended.get_token()).status(); });
  absl::Status answered;
  bool has_answered = false;
  const absl::Status worked = work([&]() -> absl::Status {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    if (has_answered || reply.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      return answered;
    has_answered = true;
    answered = reply.get();
    return answered;
  });
  if (!worked.ok()) ended.request_stop();
  if (!has_answered) answered = reply.get();
  // The server's error explains more than the cancellation that follows from it.
  if (!answered.ok() && !absl::IsCancelled(answered)) return answered;
  return worked.ok() ? answered : worked;
}

absl::Status VllmTransfer::JoinGroup(const std::stop_token& stop) {
  TAOPD_ASSIGN_OR_RETURN(const std::string size, ask_("/get_world_size", "", stop));
  TAOPD_ASSIGN_OR_RETURN(const int64_t num_workers, WorldSizeOf(size));
  TAOPD_ASSIGN_OR_RETURN(group_, make_broadcast_());
  const OrderedJson init = {{"init_info",
                             {{"rank_offset", 1},
                              {"world_size", num_workers + 1},
                              {"nccl_unique_id_b64", absl::Base64Escape(group_->unique_id())},
                              {"packed", false}}}};
  return WorkDuringRequest(
      "/init_weight_transfer_engine", init.dump(), stop,
      [&](const auto& keep_waiting) { return group_->Join(num_workers + 1, keep_waiting); });
}

absl::Status VllmTransfer::Update(const std::string& directory, const std::stop_token& stop) {
  TAOPD_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensorsModel(directory));
  TAOPD_ASSIGN_OR_RETURN(const std::string body, UpdateBody(model));
  TAOPD_RETURN_IF_ERROR(ask_("/start_weight_update", kEmptyRequest, stop).status());
  TAOPD_RETURN_IF_ERROR(WorkDuringRequest(
      "/update_weights", body, stop, [&](const auto& keep_waiting) -> absl::Status {
        for (const auto& [name, tensor] : model.tensors)
          TAOPD_RETURN_IF_ERROR(group_->Send(tensor.first, keep_waiting));
        return group_->Finish(keep_waiting);
      }));
  return ask_("/finish_weight_update", kEmptyRequest, stop).status();
}

absl::Status VllmTransfer::Send(const std::string& directory, const std::stop_token& stop) {
  absl::Status sent;
  if (group_ == nullptr) sent = JoinGroup(stop);
  if (sent.ok()) sent = Update(directory, stop);
  if (sent.ok() || group_ == nullptr) return sent;
  group_.reset();
  // Closes the server's end of the failed group. The server may not answer any more.
  ask_("/shutdown_weight_transfer_engine", kEmptyRequest, stop).status().IgnoreError();
  return sent;
}

}  // namespace taopd
