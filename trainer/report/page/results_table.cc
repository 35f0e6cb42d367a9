#include "trainer/report/page/results_table.h"

#include <absl/strings/numbers.h>
#include <absl/time/time.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "trainer/report/charts/run_style.h"
#include "trainer/report/charts/scale.h"
#include "trainer/report/page/html.h"

namespace taopd::report {
namespace {

// "61.2%" and, in small type, "56.9-65.4%, n = 500".
std::string MeasuredCell(const Measured& measured) {
  std::string detail;
  if (measured.low && measured.high && *measured.low < *measured.high) {
    detail = Percent(*measured.low) + "&ndash;" + Percent(*measured.high);
  }
  if (measured.n) {
    if (!detail.empty()) detail += ", ";
    detail += "n&nbsp;=&nbsp;" + FormatNumber(*measured.n, NumberStyle::kPlain, 4);
  }
  std::string out = "<b>" + Percent(measured.value) + "</b>";
  return detail.empty() ? out : out + " <small>" + detail + "</small>";
}

std::string Duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return FormatNumber(seconds) + " s";
  const absl::Duration unit = seconds < 60 ? absl::Milliseconds(100) : absl::Seconds(1);
  return absl::FormatDuration(absl::Trunc(absl::Seconds(seconds), unit));
}

using Results = const RunResults&;

struct Column {
  std::string title;
  // The number by which the column is sorted.
  std::function<std::optional<double>(Results)> value;
  // HTML of a value.
  std::function<std::string(Results)> cell;
};

Column MeasuredColumn(const std::string& title, std::optional<Measured> RunResults::*member) {
  return {title,
          [member](Results results) {
            const std::optional<Measured>& measured = results.*member;
            return measured ? std::optional<double>(measured->value) : std::nullopt;
          },
          [member](Results results) { return MeasuredCell(*(results.*member)); }};
}

Column NumberColumn(const std::string& title, std::optional<double> RunResults::*member,
                    int digits = 3) {
  return {title, [member](Results results) { return results.*member; },
          [member, digits](Results results) {
            return FormatNumber(*(results.*member), NumberStyle::kPlain, digits);
          }};
}

std::vector<Column> Columns() {
  return {
      MeasuredColumn("Teacher", &RunResults::teacher),
      MeasuredColumn("Student before", &RunResults::before),
      MeasuredColumn("Student after", &RunResults::after),
      {"Gap closed", GapClosed,
       [](Results results) { return FormatNumber(*GapClosed(results), NumberStyle::kPercent, 2); }},
      NumberColumn("KL before", &RunResults::kl_before),
      NumberColumn("KL after", &RunResults::kl_after),
      NumberColumn("Steps", &RunResults::steps, 6),
      {"Time", [](Results results) { return results.seconds; },
       [](Results results) { return Duration(*results.seconds); }},
      NumberColumn("Tokens/s (median)", &RunResults::tokens_per_s),
  };
}

constexpr char kNone[] =
    "<span class=\"none\" role=\"img\" aria-label=\"not recorded\">&ndash;</span>";

std::string HeadCell(const std::string& title) {
  return "<th scope=\"col\">" + EscapeHtml(title) + "</th>";
}

// A cell without HTML says that nothing was recorded.
std::string Cell(const std::string& title, const std::string& html, std::optional<double> value) {
  std::string out = "<td data-label=\"" + EscapeHtml(title) + "\"";
  if (value) out += Concat(" data-value=\"", *value, "\"");
  return out + ">" + (html.empty() ? kNone : html) + "</td>";
}

// A cell of a text, which is sorted as a number if it is one.
std::string TextCell(const std::string& title, const std::string& text) {
  double number = 0;
  const bool is_number = absl::SimpleAtod(text, &number);
  return Cell(title, NameHtml(text), is_number ? std::optional<double>(number) : std::nullopt);
}

}  // namespace

std::string Percent(double share) {
  if (!(share >= 0 && share <= 1)) return FormatNumber(share, NumberStyle::kPercent);
  return Coordinate(100 * share) + "%";
}

std::string RenderTable(const std::vector<TableRow>& rows, const std::vector<std::string>& settings,
                        const std::string& seed_title) {
  std::string head = HeadCell("Run");
  std::vector<std::string> cells(rows.size());
  for (const std::string& path : settings) {
    head += HeadCell(path);
    for (size_t i = 0; i < rows.size(); ++i) {
      cells[i] += TextCell(path, rows[i].run->SettingValue(path));
    }
  }
  if (!seed_title.empty()) {
    head += HeadCell(seed_title);
    for (size_t i = 0; i < rows.size(); ++i) cells[i] += TextCell(seed_title, rows[i].seed);
  }
  for (const Column& column : Columns()) {
    const auto recorded = [&](const TableRow& row) {
      return column.value(row.results).has_value();
    };
    if (std::none_of(rows.begin(), rows.end(), recorded)) continue;
    head += HeadCell(column.title);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::optional<double> value = column.value(rows[i].results);
      cells[i] += Cell(column.title, value ? column.cell(rows[i].results) : "", value);
    }
  }
  std::string out = "<table><thead><tr>" + head + "</tr></thead><tbody>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const TableRow& row = rows[i];
    out += Concat("<tr class=\"run ", RunClass(row.line), "\" data-run=\"", row.line,
                  "\"><th scope=\"row\">", RunSwatch(row.line), "<span>", NameHtml(row.run->name),
                  "</span></th>", cells[i], "</tr>\n");
  }
  return out + "</tbody></table>";
}

}  // namespace taopd::report
