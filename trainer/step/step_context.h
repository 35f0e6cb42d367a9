// What a training step works with.
#pragma once

#include <functional>

#include "common/base/clock.h"
#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/config/train_config.h"
#include "trainer/optim/adamw.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/step/bad_batch.h"
#include "trainer/step/loss/aggregation.h"
#include "trainer/step/timing/timeline.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Owns nothing; everything it points to must outlive the step.
struct StepContext {
  const TrainConfig* config = nullptr;
  Decoder* student = nullptr;
  AdamW* optimizer = nullptr;  // of the student's parameters
  // Generates with the student's weights, which the step changes in place.
  RolloutEngine* rollout_engine = nullptr;
  TeacherClient* teacher = nullptr;
  // The objective, the workspace and the student's temperature, which is that of the rollouts.
  HeadOptions head;
  Aggregation aggregation = Aggregation::kTokenMean;
  Clock* clock = Clock::Real();
  // Gets the spans of the step's phases, rollouts and scores; null: they are only summed up. Must
  // outlive the teacher's callbacks.
  Timeline* timeline = nullptr;
  // Gets each mini-batch that is skipped because its loss or gradient is not finite.
  std::function<void(const BadBatch&)> on_bad_batch = [](const BadBatch&) {};
  // Called in the backward pass of each mini-batch's last micro-batch, when the gradients of a layer
  // are complete: with the layers of ForwardOptions::on_layer_backward, and with kEmbeddingLayer
  // when all are. May be empty.
  std::function<void(int64_t layer)> on_gradients_complete;
  // Runs about once a second while the step waits for rollouts or scores. An error from it abandons
  // the step.
  std::function<absl::Status()> on_wait = [] { return absl::OkStatus(); };
};

}  // namespace taopd
