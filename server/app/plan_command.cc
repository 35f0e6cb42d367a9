#include "server/app/plan_command.h"

#include <ostream>

#include "common/engine/model_plan.h"
#include "common/io/file.h"
#include "server/app/teacher_app.h"
#include "server/structured/limits.h"

namespace taopd {
namespace {

void WritePlan(EnginePlan plan, const TeacherOptions& options, std::ostream& out) {
  plan.lines.push_back({MemoryItem::kMessages, "cpu", MemoryKind::kLimit,
                        options.max_message_memory_bytes, "requests and answers in flight"});
  if (FileExists(options.model + "/tokenizer.json")) {
    plan.lines.push_back({MemoryItem::kStructuredOutput, "cpu", MemoryKind::kLimit,
                          kGrammarProcessBytes, "taopd-grammar, once a request asks for a form"});
  }
  out << PlanText(plan);
}

absl::Status TryPlan(const TeacherOptions& options, const BudgetFinder& find, std::ostream& out) {
  const EngineOptions engine = options.ToEngineOptions();
  TAOPD_ASSIGN_OR_RETURN(
      const MemoryBudget budget,
      options.plan_device.empty() ? find() : StatedBudget(engine.memory, options.plan_device));
  EnginePlan refused;
  const auto plan = PlanModel(options.model, options.dtype, budget, engine, &refused, options.lora,
                              options.trainable);
  if (plan.ok()) {
    WritePlan(*plan, options, out);
  } else if (!refused.lines.empty()) {
    WritePlan(refused, options, out);
  }
  return plan.status();
}

}  // namespace

int PrintPlan(const TeacherOptions& options, const BudgetFinder& find, std::ostream& out,
              std::ostream& err) {
  const absl::Status status = TryPlan(options, find, out);
  if (!status.ok()) err << status.message() << "\n";
  return ExitCodeOfLoad(status);
}

}  // namespace taopd
