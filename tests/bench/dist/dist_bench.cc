// Runs the training steps of one rank: forward and backward passes over its share of a mini-batch,
// the exchange of gradients, AdamW, and the gathering of weights.
//
//   dist_bench MODEL_DIR OPTIONS.json        with RANK, WORLD_SIZE and TAOPD_RENDEZVOUS_FILE
//
// Options: sequences (of all ranks), prompt_tokens, response_tokens, top_k, micro_batches,
// gradients (whole, sharded), lr, threads, warm_up, steps. Sequence i of all and its teacher follow
// from formulas that peer.py has too. Prints one JSON object: the seconds by phase and the loss of
// each step, and the total calls, bytes and seconds of each kind of collective in the measured
// steps.
#include <ATen/Parallel.h>
#include <absl/time/clock.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/dist/process_group.h"
#include "common/io/file.h"
#include "common/model/weights/model_files.h"
#include "tests/bench/process.h"
#include "trainer/dist/rank_metrics.h"
#include "trainer/dist/sharded_optimizer.h"
#include "trainer/step/loss/forward_backward.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// The k ids of a row are one k-th of the vocabulary apart and together have the probability
// exp(-0.1).
ScoredRollout MakeSequence(int64_t number, const Json& options, int64_t vocab_size) {
  const auto prompt = options.at("prompt_tokens").get<int64_t>();
  const auto response = options.at("response_tokens").get<int64_t>();
  const auto top_k = options.at("top_k").get<int64_t>();
  ScoredRollout item;
  for (int64_t t = 0; t < prompt + response; ++t) {
    const auto id = static_cast<int32_t>((7919 * ((prompt + response) * number + t) + 11) %
                                         (vocab_size - 1000));
    (t < prompt ? item.rollout.prompt_ids : item.rollout.response_ids).push_back(id);
  }
  item.scores.support_size = top_k;
  for (int64_t row = 0; row < response; ++row) {
    const int64_t first = (131 * number + 17 * row) % (vocab_size / top_k);
    for (int64_t j = 0; j < top_k; ++j) {
      item.scores.ids.push_back(static_cast<int32_t>(first + j * (vocab_size / top_k)));
      item.scores.log_probs.push_back(
          static_cast<float>(-0.1 - std::log(static_cast<double>(top_k))));
    }
    item.scores.log_tail.push_back(static_cast<float>(std::log(1 - std::exp(-0.1))));
  }
  item.scores.sampled_log_probs.assign(response, -3.0f);
  item.rollout.behavior_log_probs.assign(response, -3.0f);
  return item;
}

class Trainer {
 public:
  Trainer(const std::string& model_dir, const Json& options, ProcessGroup* group)
      : group_(group), lr_(options.at("lr").get<double>()) {
    student_ = OrDie(LoadDecoder(model_dir, {"float32", "cpu", true}));
    AdamWOptions shard;
    shard.layout.num_shards = group->world_size();
    shard.shard = group->rank();
    shard.shard_gradients = options.at("gradients") == "sharded" && group->world_size() > 1;
    OptimizerConfig config;
    config.weight_decay = 0;
    optimizer_ = std::make_unique<AdamW>(student_->Parameters(), config, shard);
    sharded_ = std::make_unique<ShardedOptimizer>(optimizer_.get(), group, 1);
    head_.objective = *FindObjective("ta_opd");
    const auto all = options.at("sequences").get<int64_t>();
    const int64_t mine = all / group->world_size();
    for (int64_t i = 0; i < mine; ++i) {
      items_.push_back(
          MakeSequence(mine * group->rank() + i, options, student_->config().vocab_size));
    }
    num_rows_ = static_cast<double>(all * options.at("response_tokens").get<int64_t>());
    num_micro_batches_ = options.at("micro_batches").get<int64_t>();
  }

  Json Step() {
    OrDie(group_->AgreeOnStatus(absl::OkStatus()));
    const absl::Time start = absl::Now();
    const double processor_start = ProcessorSeconds();
    absl::Time last = start;
    Json seconds;
    const auto end = [&](const char* phase) {
      const absl::Time now = absl::Now();
      seconds[phase] = absl::ToDoubleSeconds(now - last);
      last = now;
    };
    RowSums sums;
    const auto size = static_cast<int64_t>(items_.size());
    for (int64_t m = 0; m < num_micro_batches_; ++m) {
      std::vector<const ScoredRollout*> sequences;
      for (int64_t i = m * size / num_micro_batches_; i < (m + 1) * size / num_micro_batches_; ++i)
        sequences.push_back(&items_[i]);
      ForwardBackwardOptions options;
      options.forward.on_layer_backward = sharded_->BeginPass(m + 1 == num_micro_batches_);
      OrDie(ForwardBackward(student_.get(), head_, sequences,
                            std::vector<double>(sequences.size(), 1 / num_rows_), &sums, options));
      OrDie(sharded_->EndPass());
    }
    sharded_->AddShare();
    end("passes");
    OrDie(sharded_->ReduceGradients());
    end("rest of the exchange");
    RankSums loss;
    loss.Add(&sums.weighted_loss);
    OrDie(loss.Reduce(group_));
    const double norm = OrDie(sharded_->GradientNorm());
    end("norm");
    OrDie(sharded_->Update(lr_, norm));
    end("update and weights");
    seconds["step"] = absl::ToDoubleSeconds(absl::Now() - start);
    seconds["processor"] = ProcessorSeconds() - processor_start;
    seconds["loss"] = sums.weighted_loss;
    return seconds;
  }

  int64_t num_parameters() const { return student_->config().NumParameters(); }

 private:
  ProcessGroup* const group_;
  const double lr_;
  std::unique_ptr<Decoder> student_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<ShardedOptimizer> sharded_;
  HeadOptions head_;
  std::vector<ScoredRollout> items_;
  double num_rows_ = 0;
  int64_t num_micro_batches_ = 1;
};

void Run(const std::string& model_dir, const Json& options) {
  at::set_num_threads(options.at("threads").get<int>());
  const Rendezvous where = OrDie(ReadRendezvous(ProcessEnvironment()));
  const std::unique_ptr<ProcessGroup> group =
      OrDie(ProcessGroup::Connect(where, ProcessGroupOptions()));
  Trainer trainer(model_dir, options, group.get());
  Json result;
  for (int64_t i = 0; i < options.at("warm_up").get<int64_t>(); ++i) {
    const Json step = trainer.Step();
    if (i == 0) result["first_loss"] = step.at("loss");
  }
  const std::map<std::string, CollectiveStats> before = group->stats();
  for (int64_t i = 0; i < options.at("steps").get<int64_t>(); ++i)
    result["steps"].push_back(trainer.Step());
  result["parameters"] = trainer.num_parameters();
  result["collectives"] = Json::object();
  for (const auto& [name, stats] : group->stats()) {
    const auto found = before.find(name);
    const CollectiveStats old = found == before.end() ? CollectiveStats() : found->second;
    result["collectives"][name] = {{"calls", stats.num_calls - old.num_calls},
                                   {"bytes", stats.num_bytes - old.num_bytes},
                                   {"busy_s", stats.busy_seconds - old.busy_seconds},
                                   {"waited_s", stats.seconds - old.seconds}};
  }
  group->Leave();
  std::cout << result.dump() << std::endl;
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: dist_bench MODEL_DIR OPTIONS.json\n";
    return 1;
  }
  taopd::Run(argv[1], taopd::Json::parse(taopd::OrDie(taopd::ReadFileToString(argv[2]))));
  return 0;
}
