#include "common/engine/parallel/model_command.h"

#include <nlohmann/json.hpp>

namespace taopd {
namespace {

// Calls visit(name, member) for each member.
template <typename Command, typename Visit>
void VisitMembers(Command& command, const Visit& visit) {
  visit("model_dir", command.model_dir);
  visit("dtype", command.use.dtype);
  visit("device", command.use.device);
  visit("merged_adapter_dir", command.merged_adapter_dir);
  visit("kernels", command.use.kernels);
  visit("max_len", command.use.max_len);
  visit("kernels_top_k", command.use.top_k);
  visit("num_threads", command.num_threads);
  visit("rank", command.rank);
  visit("num_ranks", command.num_ranks);
  visit("master_port", command.master_port);
  visit("token_ids", command.token_ids);
  visit("num_rows", command.num_rows);
  visit("past_lens", command.past_lens);
  visit("block_tables", command.block_tables);
  visit("num_blocks", command.num_blocks);
  visit("for_whole_sequences", command.for_whole_sequences);
  visit("from_block", command.from_block);
  visit("to_block", command.to_block);
  visit("hidden_rows", command.hidden_rows);
  visit("sampled_ids", command.sampled_ids);
  visit("candidate_ids", command.candidate_ids);
  visit("num_candidates", command.num_candidates);
  visit("top_k", command.scoring.top_k);
  visit("temperature", command.scoring.temperature);
  visit("entropy", command.scoring.entropy);
  visit("sampled_ranks", command.scoring.rank);
  visit("dense", command.scoring.dense);
  visit("workspace_bytes", command.scoring.workspace_bytes);
}

}  // namespace

std::string ModelCommand::Encode() const {
  nlohmann::json json = {{"kind", static_cast<int>(kind)}};
  VisitMembers(*this, [&json](const char* name, const auto& member) { json[name] = member; });
  std::string bytes;
  nlohmann::json::to_cbor(json, bytes);
  return bytes;
}

absl::StatusOr<ModelCommand> ModelCommand::Decode(const std::string& bytes) {
  try {
    const nlohmann::json json = nlohmann::json::from_cbor(bytes);
    ModelCommand command;
    command.kind = static_cast<Kind>(json.at("kind").get<int>());
    VisitMembers(command,
                 [&json](const char* name, auto& member) { json.at(name).get_to(member); });
    return command;
  } catch (const nlohmann::json::exception& error) {
    return DataLoss("a command of rank 0 cannot be read: ", error.what());
  }
}

}  // namespace taopd
