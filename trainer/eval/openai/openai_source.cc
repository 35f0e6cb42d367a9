#include "trainer/eval/openai/openai_source.h"

#include <utility>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Reads the reply to a completion or to a chat, which hold their texts in different fields.
absl::StatusOr<EvalResponse> ReadResponse(const Json& reply, bool chat) {
  if (!reply.is_object()) return DataLoss("the reply is not a JSON object");
  const auto choices = reply.find("choices");
  if (choices == reply.end() || !choices->is_array() || choices->empty() ||
      !choices->front().is_object()) {
    return DataLoss("the reply holds no \"choices\"");
  }
  const Json& choice = choices->front();
  const Json* text = nullptr;
  if (chat && choice.contains("message") && choice.at("message").is_object()) {
    const Json& message = choice.at("message");
    if (message.contains("content")) text = &message.at("content");
  } else if (!chat && choice.contains("text")) {
    text = &choice.at("text");
  }
  EvalResponse response;
  // The content is null if a reasoning model was cut while it was thinking.
  if (text == nullptr || (!text->is_string() && !text->is_null())) {
    return DataLoss("the reply's choice holds no text in ",
                    chat ? "\"message.content\"" : "\"text\"");
  }
  if (text->is_string()) response.text = text->get<std::string>();
  const auto finish = choice.find("finish_reason");
  response.truncated = finish != choice.end() && *finish == "length";
  response.num_tokens = -1;
  if (const auto usage = reply.find("usage"); usage != reply.end() && usage->is_object()) {
    const auto tokens = usage->find("completion_tokens");
    if (tokens != usage->end() && tokens->is_number_unsigned()) {
      response.num_tokens = tokens->get<int64_t>();
    }
  }
  return response;
}

Json RequestBody(const EvalTask& task, const EvalSampling& sampling, const OpenAiOptions& options,
                 const std::string& model) {
  const PromptRecord& problem = *task.problem;
  Json body = {{"model", model}};
  if (!problem.messages.is_null()) {
    body["messages"] = problem.messages;
    if (options.chat_template_kwargs.is_object() && !options.chat_template_kwargs.empty()) {
      body["chat_template_kwargs"] = options.chat_template_kwargs;
    }
  } else if (!problem.prompt_ids.empty()) {
    body["prompt"] = problem.prompt_ids;
  } else {
    body["prompt"] = problem.prompt;
  }
  body["max_tokens"] = sampling.max_tokens;
  body["temperature"] = sampling.temperature;
  body["top_p"] = sampling.top_p;
  body["seed"] = task.seed >> 11;  // servers accept signed or 53-bit integers
  return body;
}

}  // namespace

OpenAiSource::~OpenAiSource() { client_.set_given_up(true); }

void OpenAiSource::Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                            std::function<void(size_t, absl::StatusOr<EvalResponse>)> done) {
  client_.set_given_up(false);
  const size_t num_tasks = tasks.size();  // the caller may drop `tasks` once the last done has run
  for (size_t i = 0; i < num_tasks; ++i) {
    pool_.Enqueue([this, i, &task = tasks[i], sampling, done] {
      // After a final failure the remaining requests need not be sent.
      if (client_.given_up())
        return done(i, absl::CancelledError("not asked: an earlier request failed"));
      auto response = Ask(task, sampling);
      if (!response.ok()) client_.set_given_up(true);
      done(i, std::move(response));
    });
  }
}

absl::StatusOr<EvalResponse> OpenAiSource::Ask(const EvalTask& task, const EvalSampling& sampling) {
  const PromptRecord& problem = *task.problem;
  const bool chat = !problem.messages.is_null();
  const std::string path = chat ? "/chat/completions" : "/completions";
  const std::string body = RequestBody(task, sampling, options_, model_)
                               .dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto reply = client_.Send(path, body, absl::Seconds(options_.timeout_s));
  if (!reply.ok()) return Annotate(reply.status(), problem.id);
  const std::string where = Concat(problem.id, ": ", client_.AddressOf(path));
  TAOPD_ASSIGN_OR_RETURN(const Json json, ParseOrderedJson(*reply, where));
  auto response = ReadResponse(json, chat);
  if (!response.ok()) return Annotate(response.status(), where);
  return response;
}

absl::StatusOr<std::unique_ptr<OpenAiSource>> OpenAiSource::Connect(const OpenAiOptions& options,
                                                                    Clock* clock) {
  TAOPD_ASSIGN_OR_RETURN(ServerAddress server, ParseOpenAiUrl(options.url));
  std::unique_ptr<OpenAiSource> source(new OpenAiSource(options, std::move(server), clock));
  TAOPD_ASSIGN_OR_RETURN(source->model_, source->client_.ChooseModel());
  return source;
}

}  // namespace taopd
