#include "trainer/eval/response_judge.h"

#include <utility>

namespace taopd {

absl::StatusOr<std::unique_ptr<ResponseJudge>> ResponseJudge::Make(const std::string& url) {
  HttpRewardOptions options;
  options.url = url;
  TAOPD_ASSIGN_OR_RETURN(options.server,
                         Annotate(ParseHttpUrl(url), Concat("eval.grader = ", url)));
  return std::make_unique<ResponseJudge>(std::move(options));
}

void ResponseJudge::Judge(const EvalTask& task, const std::string& prompt, EvalResponse response,
                          std::function<void(absl::StatusOr<EvalResponse>)> done) {
  const PromptRecord& problem = *task.problem;
  RewardSample sample = {.id = Concat("problem-", task.problem_index, "-", task.sample),
                         .prompt = prompt,
                         .response = response.text,
                         .answer = problem.answer,
                         .source = problem.source};
  server_.Reward({std::move(sample)}, [response = std::move(response), done = std::move(done)](
                                          absl::StatusOr<std::vector<double>> rewards) mutable {
    if (!rewards.ok()) return done(Annotate(rewards.status(), "eval.grader"));
    response.reward = rewards->front();
    done(std::move(response));
  });
}

}  // namespace taopd
