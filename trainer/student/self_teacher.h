// The student as its own teacher: an engine over its start weights, over an average of its weights,
// or over its live weights. Usually its prompt has privileged context that the student lacks
// (trainer/data/teacher_prompt.h).
//
//   start  The weights of student.model. On a CPU they stay in the mapped files. With refresh_every
//          they are replaced by the current weights every N steps.
//   ema    After each step, average = ema * average + (1 - ema) * weights. The average starts as
//          the student's weights. It is float32, and is sharded, saved and restored with the
//          optimizer's state (AdamW).
//   live   The student's own decoder, with the weights of the step, or the weights that generate
//          if responses are generated ahead of training (UseForLive). The scores are constants: no
//          gradient flows through the teacher.
//
// If responses are generated ahead (trainer.async_steps), those of version v are scored with these
// weights as of step v (trainer/pipeline/rollout_pipeline.h).
//
// With adapters (student.lora), average and refresh apply to the adapters' matrices. The average
// adapters are merged into the student's base, which the teacher shares.
//
// The weights that a refresh replaces are an average with ema = 0 that is not updated in between.
// The engine reads them in the student's type, from a copy that every rank has.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/dist/process_group.h"
#include "common/engine/engine.h"
#include "trainer/config/teacher_config.h"
#include "trainer/student/student.h"
#include "trainer/teacher/engine_teacher_client.h"

namespace taopd {

struct SelfTeacherOptions {
  TeacherWeights weights = TeacherWeights::kStart;
  double ema = 0.99;
  int64_t refresh_every = 0;
  // The model from which the student starts, as LoadStudent takes it.
  std::string model_dir;
  std::string dtype;
  std::string device;
  std::string tokenizer_dir;
  EngineOptions engine;
};

// Used by the training thread only.
class SelfTeacher {
 public:
  // `student` may still be empty; Start needs it. With an average, the student's optimizer must
  // keep one (AdamWOptions::keeps_average). `group` has the ranks that share the optimizer. Both
  // must outlive the object.
  SelfTeacher(SelfTeacherOptions options, const Student* student, ProcessGroup* group)
      : options_(std::move(options)), student_(student), group_(group) {}

  // Makes live weights those of `decoder` instead of the student's. Call it before Start.
  void UseForLive(std::shared_ptr<Decoder> decoder) { decoder_ = std::move(decoder); }
  // Loads the weights and makes the engine. Returns INVALID_ARGUMENT if a prompt and its response
  // can be longer than the model's positions, and the errors of the model's files. All ranks must
  // call it.
  absl::StatusOr<EngineTeacherClient::Started> Start();
  // Updates the weights after step `step` (1-based). No request may be open. All ranks must call
  // it; returns the errors of the group.
  absl::Status UpdateAfterStep(int64_t step);
  // Loads the average into the teacher's decoder after the optimizer's state was restored.
  absl::Status LoadAverage();

 private:
  // Sets `decoder_`, with the weights that score first.
  absl::Status ChooseDecoder();
  bool has_average() const { return KeepsAverage(options_.weights, options_.refresh_every); }

  SelfTeacherOptions options_;
  const Student* const student_;
  ProcessGroup* const group_;
  // Null before Start and UseForLive. With live weights, it is the student's own unless UseForLive
  // names another one.
  std::shared_ptr<Decoder> decoder_;
};

}  // namespace taopd
