// Starts a generation whose updates are streamed.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "server/http/answer.h"
#include "server/http/generation/generation.h"

namespace taopd {

// Waits for the first token, so that an error before it is an answer of its own, and returns the
// stream that `run` then sends: run(request, model, first update, generation, send). What is
// unfinished when `run` returns is cancelled.
template <typename Request, typename Run>
Answer StreamAnswer(Request request, const Caller& caller, std::shared_ptr<const ServedModel> model,
                    Run run) {
  struct Job {
    Request request;
    std::shared_ptr<const ServedModel> model;
    Run run;
    std::unique_ptr<Generation> generation;
    std::optional<ChoiceUpdate> first;
  };
  auto job = std::make_shared<Job>(
      Job{std::move(request), std::move(model), std::move(run), nullptr, std::nullopt});
  job->generation =
      std::make_unique<Generation>(job->request, caller, job->model, /*streams=*/true);
  auto first = job->generation->Next();
  if (!first.ok()) return FromStatus(first.status());
  job->first = *std::move(first);
  return EventStream{[job](const SendPiece& send) {
    job->run(job->request, *job->model, std::move(job->first), job->generation.get(), send);
    job->generation.reset();
  }};
}

}  // namespace taopd
