// The contents of report.css and report.js, which the build embeds in the library.
#pragma once

namespace taopd::report {

extern const char kReportCss[];
extern const char kReportJs[];

}  // namespace taopd::report
