// `taopd-teacher --plan`: prints the memory plan of the model that the flags describe.
#pragma once

#include <functional>
#include <iosfwd>

#include "common/base/status.h"
#include "common/memory/memory_budget.h"
#include "server/options/teacher_options.h"

namespace taopd {

// Finds the memory budget of the device that the flags name, on this machine.
using BudgetFinder = std::function<absl::StatusOr<MemoryBudget>()>;

// Writes the plan to `out`, including the limit of the server's own messages, and returns the exit
// code: 0, or that of the error, which is written to `err`. A plan that does not fit is also
// written. Reads config.json and the headers of the weights, but loads nothing. `find` is called
// unless options.plan_device describes a device.
int PrintPlan(const TeacherOptions& options, const BudgetFinder& find, std::ostream& out,
              std::ostream& err);

}  // namespace taopd
