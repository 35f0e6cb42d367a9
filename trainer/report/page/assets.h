// The contents of report.css and report.js, put into the library when it is built.
#pragma once

namespace taopd::report {

extern const char kReportCss[];
extern const char kReportJs[];

}  // namespace taopd::report
