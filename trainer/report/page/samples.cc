#include <algorithm>
#include <map>
#include <utility>

#include "trainer/report/charts/run_style.h"
#include "trainer/report/page/html.h"
#include "trainer/report/page/page.h"

namespace taopd::report {
namespace {

// The page shows kNumOpenPairs pairs of each run openly, and more up to kMaxPairs folded away.
constexpr size_t kNumOpenPairs = 4;
constexpr size_t kMaxPairs = 24;
// The page shows this many of the latest generations from evaluations for each run.
constexpr size_t kMaxEvaluations = 12;
// The limit for a prompt and for a response.
constexpr size_t kMaxTextBytes = 20'000;

struct Pair {
  const Sample* before = nullptr;
  const Sample* after = nullptr;
};

// Pairs the n-th generation before training with the n-th after training of the same prompt.
std::vector<Pair> PairUp(const RunRecord& run) {
  std::vector<Pair> pairs;
  std::map<std::string, std::vector<size_t>> pairs_of_prompt;
  std::map<std::pair<std::string, Sample::When>, size_t> num_seen;
  for (const Sample& sample : run.samples) {
    if (sample.when == Sample::When::kEval) continue;
    std::vector<size_t>& indices = pairs_of_prompt[sample.prompt];
    const size_t nth = num_seen[{sample.prompt, sample.when}]++;
    if (nth >= indices.size()) {
      indices.push_back(pairs.size());
      pairs.emplace_back();
    }
    Pair& pair = pairs[indices[nth]];
    (sample.when == Sample::When::kBefore ? pair.before : pair.after) = &sample;
  }
  return pairs;
}

std::string Text(const std::string& text) {
  if (text.size() <= kMaxTextBytes) return EscapeHtml(text);
  size_t end = kMaxTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return EscapeHtml(text.substr(0, end)) + Concat("<span class=\"cut\">", text.size() - end,
                                                  " more bytes are in samples.jsonl</span>");
}

std::string Verdict(const Sample& sample) {
  if (!sample.correct) return "";
  return *sample.correct ? "<span class=\"verdict right\">&#10003; correct</span>"
                         : "<span class=\"verdict wrong\">&#10007; wrong</span>";
}

std::string Response(const std::string& title, const Sample* sample) {
  std::string out = "<div class=\"response\"><h4>" + title;
  if (sample == nullptr) return out + "</h4><p class=\"missing\">not recorded</p></div>";
  out += Concat(" <small>step ", sample->step, "</small>", Verdict(*sample), "</h4>");
  return out + "<pre tabindex=\"0\" dir=\"auto\">" + Text(sample->response) + "</pre></div>";
}

std::string Prompt(const Sample& sample) {
  std::string out = "<div class=\"prompt\"><h4>Prompt";
  if (sample.answer) out += " <small>answer: " + Text(*sample.answer) + "</small>";
  return out + "</h4><pre tabindex=\"0\" dir=\"auto\">" + Text(sample.prompt) + "</pre></div>";
}

std::string NotShown(size_t num_all, size_t num_shown) {
  if (num_all == num_shown) return "";
  return Concat("<p class=\"remark\">", num_all - num_shown, " more are in samples.jsonl.</p>");
}

std::string RunSamples(const RunRecord& run) {
  std::string out;
  const std::vector<Pair> pairs = PairUp(run);
  const size_t num_pairs = std::min(pairs.size(), kMaxPairs);
  for (size_t i = 0; i < num_pairs; ++i) {
    if (i == kNumOpenPairs) {
      out += Concat("<details class=\"more\"><summary>", num_pairs - i, " more</summary>\n");
    }
    const Pair& pair = pairs[i];
    out += "<article class=\"card sample\">" + Prompt(pair.before ? *pair.before : *pair.after) +
           "<div class=\"sides\">" + Response("Before", pair.before) +
           Response("After", pair.after) + "</div></article>\n";
  }
  out += NotShown(pairs.size(), num_pairs);
  if (num_pairs > kNumOpenPairs) out += "</details>\n";

  std::vector<const Sample*> evaluations;
  for (const Sample& sample : run.samples) {
    if (sample.when == Sample::When::kEval) evaluations.push_back(&sample);
  }
  if (evaluations.empty()) return out;
  const size_t num_shown = std::min(evaluations.size(), kMaxEvaluations);
  out += "<details class=\"more\"><summary>During training</summary>\n";
  for (size_t i = evaluations.size() - num_shown; i < evaluations.size(); ++i) {
    out += "<article class=\"card sample\">" + Prompt(*evaluations[i]) +
           Response("Response", evaluations[i]) + "</article>\n";
  }
  return out + NotShown(evaluations.size(), num_shown) + "</details>\n";
}

}  // namespace

std::string RenderSamples(const std::vector<RunRecord>& runs, const Comparison& comparison) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].samples.empty()) continue;
    // A single run is shown openly; several runs can each be folded away.
    if (runs.size() == 1) {
      out += RunSamples(runs[i]);
      continue;
    }
    const size_t line = comparison.line_of_run[i];
    out += Concat("<details class=\"of-run run ", RunClass(line), "\" data-run=\"", line, "\"",
                  out.empty() ? " open" : "", "><summary>", NameHtml(runs[i].name), "</summary>\n",
                  RunSamples(runs[i]), "</details>\n");
  }
  if (out.empty()) return "";
  return "<section aria-labelledby=\"samples\"><h2 id=\"samples\">Generations</h2>\n" + out +
         "</section>\n";
}

}  // namespace taopd::report
