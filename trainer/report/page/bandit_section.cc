#include <absl/strings/str_join.h>

#include <algorithm>
#include <array>

#include "trainer/bandit/landscape.h"
#include "trainer/report/charts/contour.h"
#include "trainer/report/charts/run_style.h"
#include "trainer/report/charts/scale.h"
#include "trainer/report/page/html.h"
#include "trainer/report/page/page.h"

namespace taopd::report {
namespace {

// The drawing's own units.
constexpr double kLandscapeWidth = 640, kLandscapeHeight = 400;
constexpr double kLandscapeLeft = 52, kLandscapeRight = 628, kLandscapeTop = 12,
                 kLandscapeBottom = 360;

std::string Key(const bandit::Result& result, const std::string& teacher) {
  std::string out = "<p class=\"key\">";
  for (size_t i = 0; i < result.runs.size(); ++i) {
    out += "<span>" + RunSwatch(i) + EscapeHtml(result.runs[i].objective) + "</span>";
  }
  return out + "<span>" + teacher + "teacher</span></p>";
}

// Returns a figure with its caption, up to the content of the SVG.
std::string BeginFigure(const std::string& id, const std::string& title, const std::string& hint,
                        const std::string& key) {
  return Concat("<figure class=\"chart\"><figcaption><h3>", EscapeHtml(title), "</h3><p>",
                EscapeHtml(hint), "</p>", key,
                "</figcaption><div class=\"plot\"><svg viewBox=\"0 0 ", kLandscapeWidth, " ",
                kLandscapeHeight, "\" role=\"img\" aria-labelledby=\"", id, "-title ", id,
                "-desc\"><title id=\"", id, "-title\">", EscapeHtml(title), "</title><desc id=\"",
                id, "-desc\">", EscapeHtml(hint), "</desc>");
}

std::string EndFigure() { return "</svg></div></figure>\n"; }

double X(double fraction) { return kLandscapeLeft + (kLandscapeRight - kLandscapeLeft) * fraction; }
double Y(double fraction) {
  return kLandscapeBottom - (kLandscapeBottom - kLandscapeTop) * fraction;
}

std::string RenderPolicies(const bandit::Result& result, const std::string& id) {
  std::vector<double> values = {0};
  values.insert(values.end(), result.teacher.begin(), result.teacher.end());
  for (const bandit::ObjectiveRun& run : result.runs) {
    values.insert(values.end(), run.policy.begin(), run.policy.end());
  }
  const Scale scale = MakeScale(values, {.floor = 0, .ceiling = 1});
  const auto arm_x = [](int32_t v) { return X((v + 0.5) / bandit::kNumArms); };
  std::string out = BeginFigure(
      id, "Policies",
      Concat("Probability of each arm after ", result.options.steps,
             " steps. Bars: the teacher; the dark ones are its top ", result.options.k, "."),
      Key(result, "<i class=\"bar\"></i>"));

  out += "<g class=\"grid\">";
  for (const Tick& tick : scale.ticks) {
    out += Concat("<path d=\"M", kLandscapeLeft, " ", Coordinate(Y(scale.Fraction(tick.value))),
                  "H", kLandscapeRight, "\"/>");
  }
  out += "</g><g class=\"ticks\">";
  for (const Tick& tick : scale.ticks) {
    out += Concat("<text x=\"", kLandscapeLeft - 6, "\" y=\"",
                  Coordinate(Y(scale.Fraction(tick.value)) + 3.5), "\" text-anchor=\"end\">",
                  tick.label, "</text>");
  }
  for (int32_t arm : {1, 5, 10, 15, 20, 25, 30}) {
    out += Concat("<text x=\"", Coordinate(arm_x(arm - 1)), "\" y=\"", kLandscapeBottom + 16,
                  "\" text-anchor=\"middle\">", arm, "</text>");
  }
  out += Concat("<text x=\"", kLandscapeRight, "\" y=\"", kLandscapeBottom + 31,
                "\" text-anchor=\"end\" class=\"axis\">arm</text></g>");

  // One path for arms outside the top-k and one for arms inside it.
  std::array<std::string, 2> bars;
  const double half = 0.36 * (kLandscapeRight - kLandscapeLeft) / bandit::kNumArms;
  for (int32_t v = 0; v < bandit::kNumArms; ++v) {
    const auto& support = result.teacher_support;
    const bool inside = std::ranges::find(support, v) != support.end();
    const double top = Y(scale.Fraction(result.teacher[v]));
    bars[inside] +=
        Concat("M", Coordinate(arm_x(v) - half), " ", kLandscapeBottom, "V", Coordinate(top), "H",
               Coordinate(arm_x(v) + half), "V", kLandscapeBottom, "Z");
  }
  out += "<path class=\"bars\" d=\"" + bars[0] + "\"/><path class=\"bars top\" d=\"" + bars[1] +
         "\"/>";
  for (size_t i = 0; i < result.runs.size(); ++i) {
    std::string line, marks;
    for (int32_t v = 0; v < bandit::kNumArms; ++v) {
      const double y = Y(scale.Fraction(result.runs[i].policy[v]));
      line += (v == 0 ? "M" : "L") + Coordinate(arm_x(v)) + " " + Coordinate(y);
      marks += RunMark(i, arm_x(v), y);
    }
    out += Concat("<g class=\"", RunClass(i), "\"><path class=\"line\" d=\"", line,
                  "\"/><path class=\"mark\" d=\"", marks, "\"/></g>");
  }
  return out +
         Concat("<path class=\"base\" d=\"M", kLandscapeLeft, " ", kLandscapeBottom, "H",
                kLandscapeRight, "\"/>") +
         EndFigure();
}

std::string RenderLandscape(const bandit::Result& result, const std::string& id) {
  const bandit::Landscape landscape = bandit::MakeLandscape(result);
  const auto x = [&](double value) {
    return X((value - landscape.min_x) / (landscape.max_x - landscape.min_x));
  };
  const auto y = [&](double value) {
    return Y((value - landscape.min_y) / (landscape.max_y - landscape.min_y));
  };
  const ContourFrame frame = {kLandscapeLeft, kLandscapeRight, kLandscapeTop, kLandscapeBottom};
  const std::vector<double> levels = ContourLevels(landscape.full_kl);
  const auto add_level = [](std::string* text, double level) { *text += FormatNumber(level); };
  std::string out = BeginFigure(
      id, "Landscape",
      "Full reverse KL on the first two principal components of all logits; stronger shade is "
      "larger, lines at " +
          absl::StrJoin(levels, ", ", add_level) + " nats. Each path ends at its mark.",
      Key(result, Concat("<svg class=\"swatch\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path "
                         "class=\"star\" d=\"",
                         StarPath(12, 6, 6), "\"/></svg>")));
  for (const std::string& band : ContourBands(landscape.full_kl, levels, frame)) {
    out += "<path class=\"level\" d=\"" + band + "\"/>";
  }
  for (double level : levels) {
    out += "<path class=\"contour\" d=\"" + ContourLine(landscape.full_kl, level, frame) + "\"/>";
  }
  for (size_t i = 0; i < landscape.paths.size(); ++i) {
    const std::vector<bandit::PlanePoint>& path = landscape.paths[i];
    std::string line;
    for (size_t p = 0; p < path.size(); ++p) {
      line += (p == 0 ? "M" : "L") + Coordinate(x(path[p].x)) + " " + Coordinate(y(path[p].y));
    }
    out += Concat("<g class=\"", RunClass(i), "\"><path class=\"line\" d=\"", line,
                  "\"/><path class=\"mark\" d=\"", RunMark(i, x(path.back().x), y(path.back().y)),
                  "\"/></g>");
  }
  if (!landscape.paths.empty()) {
    const bandit::PlanePoint& start = landscape.paths[0].front();
    out += Concat("<g class=\"ticks\"><text x=\"", Coordinate(x(start.x) + 7), "\" y=\"",
                  Coordinate(y(start.y) - 7), "\">start</text></g>");
  }
  out += "<path class=\"star\" d=\"" + StarPath(x(landscape.teacher.x), y(landscape.teacher.y), 9) +
         "\"/>";
  const auto share = [&](int axis) {
    return FormatNumber(landscape.plane.variance_share[axis], NumberStyle::kPercent);
  };
  out += Concat("<path class=\"base\" d=\"M", kLandscapeLeft, " ", kLandscapeTop, "V",
                kLandscapeBottom, "H", kLandscapeRight, "\"/><g class=\"ticks\"><text x=\"",
                kLandscapeRight, "\" y=\"", kLandscapeBottom + 16,
                "\" text-anchor=\"end\">first component, ", share(0),
                " of the variance</text><text transform=\"translate(", kLandscapeLeft - 10, " ",
                kLandscapeTop, ") rotate(-90)\" text-anchor=\"end\">second component, ", share(1),
                "</text></g>");
  return out + EndFigure();
}

std::string RenderResultTable(const bandit::Result& result) {
  std::string out =
      "<div class=\"card table\"><table><thead><tr><th scope=\"col\">Objective</th>"
      "<th scope=\"col\">Full reverse KL</th><th scope=\"col\">Student tail</th>"
      "<th scope=\"col\">Teacher tail</th></tr></thead><tbody>";
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const bandit::TrajectoryPoint& end = result.runs[i].trajectory.back();
    out += Concat("<tr><th scope=\"row\">", RunSwatch(i), EscapeHtml(result.runs[i].objective),
                  "</th><td data-label=\"Full reverse KL\">", FormatNumber(end.full_kl),
                  "</td><td data-label=\"Student tail\">",
                  FormatNumber(end.student_tail, NumberStyle::kPlain, 4),
                  "</td><td data-label=\"Teacher tail\">",
                  FormatNumber(result.teacher_tail, NumberStyle::kPlain, 4), "</td></tr>");
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string RenderBandit(const bandit::Result& result, const std::string& id) {
  return Concat("<section aria-labelledby=\"", id, "\"><h2 id=\"", id,
                "\">30-armed bandit</h2><p class=\"remark\">Support: the ",
                NameOf(result.options.support), "'s top ", result.options.k, "; ",
                result.options.steps, " steps of AdamW at ",
                FormatNumber(result.options.learning_rate), ", seed ", result.options.seed,
                ".</p><div class=\"figures-2\">\n", RenderPolicies(result, id + "-policies"),
                RenderLandscape(result, id + "-landscape"), "</div>\n", RenderResultTable(result),
                "</section>\n");
}

}  // namespace taopd::report
