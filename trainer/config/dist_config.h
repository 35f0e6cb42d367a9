// Settings of training on several ranks. See docs/scaling.md.
#pragma once

#include <cstdint>
#include <string>

#include "common/config/settings.h"

namespace taopd {

// The part of the gradients that a rank keeps.
enum class GradientSums { kAuto, kWhole, kSharded };
inline SettingWords<GradientSums> WordsOf(GradientSums) {
  return {{GradientSums::kAuto, "auto"},
          {GradientSums::kWhole, "whole"},
          {GradientSums::kSharded, "sharded"}};
}

// auto for the gradients stands for what the memory plan chooses; without a plan they are whole.
struct DistConfig {
  GradientSums gradients = GradientSums::kAuto;
  bool deterministic = false;
  int64_t shares = 4;
  std::string interface;
  double collective_timeout_s = 1800;
  double heartbeat_timeout_s = 20;
  bool ShardsGradients(int64_t num_ranks) const {
    return num_ranks > 1 && gradients == GradientSums::kSharded;
  }
  void Visit(SettingVisitor& v) {
    v.Setting("gradients", &gradients,
              "Gradients that a rank keeps. whole: sums for all parameters, sent once per "
              "mini-batch; sharded: sums for its slice of the parameters, with gradients sent for "
              "every micro-batch; auto: sharded only if the memory plan has no room for whole.")
        .MayChange();
    v.Setting(
        "deterministic", &deterministic,
        "Cut each mini-batch into dist.shares parts and add their gradients in a fixed order, "
        "so that the weights do not depend on the number of ranks, bit for bit, if "
        "trainer.num_threads is the same.");
    v.Setting("shares", &shares,
              "Parts of a mini-batch for dist.deterministic; each rank takes 1, 2, 4, ... of them.",
              AtLeast<int64_t>(1));
    v.Setting("interface", &interface,
              "Network interface, or address of this machine, at which the ranks meet and watch "
              "each other. Empty: the address from which this machine reaches the master.")
        .MayChange();
    v.Setting("collective_timeout_s", &collective_timeout_s,
              "Time for which a rank waits in a collective operation for ranks that live but do "
              "not join it.",
              MoreThan(0.0))
        .MayChange();
    v.Setting("heartbeat_timeout_s", &heartbeat_timeout_s,
              "If a rank sends no heartbeat for this time, all ranks end.", AtLeast(1.0))
        .MayChange();
  }
};

}  // namespace taopd
