// One request as each protocol that generates sends it, over sockets.
#pragma once

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "proto/vllm/engine.grpc.pb.h"
#include "proto/vllm/inference.grpc.pb.h"

namespace taopd::testing {

using nlohmann::json;

// A form that texts may be asked to have, in the words of vLLM's structured_outputs.
struct Form {
  std::string kind;
  json value;
  std::string text = {};                  // that has the form
  std::vector<std::string> letters = {};  // that may come before, between and behind its letters
};

// A client's wishes. Those that are not set are left out of the request.
struct Ask {
  std::string prompt = "dfh";  // ids 3, 5 and 7
  int64_t max_tokens = 2;
  std::optional<std::string> cache_salt = {};
  std::optional<int64_t> n = {};
  std::optional<int64_t> seed = {};
  std::optional<int64_t> truncate = {};
  float temperature = 0.5f;
  bool every_field = false;  // kEveryField and a minimum of one token
  std::optional<Form> form = {};
};

inline const json kEveryField = {{"top_k", 7},
                                 {"min_p", 0.125},
                                 {"repetition_penalty", 1.5},
                                 {"presence_penalty", -1},
                                 {"frequency_penalty", 0.25},
                                 {"logit_bias", {{"4", -3}}},
                                 {"allowed_token_ids", {9}},
                                 {"stop_token_ids", {30}}};

struct Servers {
  httplib::Client http;
  std::shared_ptr<grpc::Channel> grpc;
};

inline std::vector<uint32_t> IdsOf(const std::string& prompt) {
  std::vector<uint32_t> ids;
  for (const char letter : prompt) ids.push_back(static_cast<uint32_t>(letter - 'a'));
  return ids;
}

// The functions that send return the error that the client is told; empty for success.
inline std::string Post(Servers& servers, const char* path, const json& body) {
  const httplib::Result result = servers.http.Post(path, body.dump(), "application/json");
  if (!result) return "no answer";
  const json answer = json::parse(result->body, nullptr, /*allow_exceptions=*/false);
  return result->status == 200 ? "" : answer["error"]["message"].get<std::string>();
}

template <typename Message>
Message FromJson(const json& fields) {
  Message message;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(fields.dump(), &message).ok()) << fields;
  return message;
}

template <typename Reader, typename Message>
std::string EndOf(const std::unique_ptr<Reader>& reader, Message message) {
  while (reader->Read(&message)) continue;
  return reader->Finish().error_message();
}

template <typename Value>
void Set(json* object, const char* name, const std::optional<Value>& value) {
  if (value) (*object)[name] = *value;
}

inline json VllmFields(const Ask& ask) {
  json fields = {
      {"max_tokens", ask.max_tokens}, {"temperature", ask.temperature}, {"ignore_eos", true}};
  Set(&fields, "n", ask.n);
  Set(&fields, "seed", ask.seed);
  if (ask.every_field) fields.update(kEveryField);
  if (ask.every_field) fields["min_tokens"] = 1;
  if (ask.form) fields["structured_outputs"] = {{ask.form->kind, ask.form->value}};
  return fields;
}

inline std::string Completions(Servers& servers, const Ask& ask) {
  json body = VllmFields(ask);
  body["prompt"] = IdsOf(ask.prompt);
  Set(&body, "cache_salt", ask.cache_salt);
  Set(&body, "truncate_prompt_tokens", ask.truncate);
  return Post(servers, "/v1/completions", body);
}

inline std::string Chat(Servers& servers, const Ask& ask) {
  json body = VllmFields(ask);
  body["messages"] = {{{"role", "user"}, {"content", ask.prompt}}};
  Set(&body, "cache_salt", ask.cache_salt);
  Set(&body, "truncate_prompt_tokens", ask.truncate);
  return Post(servers, "/v1/chat/completions", body);
}

inline std::string Tokens(Servers& servers, const Ask& ask) {
  json body = {{"token_ids", IdsOf(ask.prompt)}, {"sampling_params", VllmFields(ask)}};
  Set(&body, "cache_salt", ask.cache_salt);
  return Post(servers, "/inference/v1/generate", body);
}

// A form's value as gRPC's messages take it.
inline json FormOf(const Form& form) {
  if (form.kind == "choice") return {{"choices", form.value}};
  return form.value.is_object() ? json(form.value.dump()) : form.value;
}

inline std::string Sglang(Servers& servers, const Ask& ask) {
  json sampling = {
      {"max_new_tokens", ask.max_tokens}, {"temperature", ask.temperature}, {"ignore_eos", true}};
  Set(&sampling, "n", ask.n);
  Set(&sampling, "sampling_seed", ask.seed);
  if (ask.every_field) sampling.update(kEveryField);
  if (ask.every_field) sampling["min_new_tokens"] = 1;
  if (ask.form) {
    const std::string& kind = ask.form->kind;
    const char* name = kind == "json" ? "json_schema" : kind == "grammar" ? "ebnf" : kind.c_str();
    sampling[name] = FormOf(*ask.form);
  }
  json body = {{"input_ids", IdsOf(ask.prompt)}, {"sampling_params", sampling}};
  Set(&body, "cache_salt", ask.cache_salt);
  return Post(servers, "/generate", body);
}

inline std::string VllmInference(Servers& servers, const Ask& ask) {
  json body = {{"token_ids", {{"ids", IdsOf(ask.prompt)}}},
               {"temperature", ask.temperature},
               {"sampling", json::object()},
               {"decoding", json::object()},
               {"stopping", {{"max_new_tokens", ask.max_tokens}, {"ignore_eos", true}}}};
  if (ask.cache_salt) body["kv"] = {{"cache_salt", *ask.cache_salt}};
  Set(&body, "truncate_prompt_tokens", ask.truncate);
  Set(&body["sampling"], "seed", ask.seed);
  if (ask.every_field) {
    for (const char* name : {"top_k", "min_p"}) body["sampling"][name] = kEveryField[name];
    for (const char* name : {"repetition_penalty", "presence_penalty", "frequency_penalty",
                             "logit_bias", "allowed_token_ids"})
      body["decoding"][name] = kEveryField[name];
    body["stopping"].update({{"min_new_tokens", 1}, {"stop_token_ids", {30}}});
  }
  if (ask.form) body["decoding"][ask.form->kind] = FormOf(*ask.form);
  grpc::ClientContext context;
  vllm::GenerateResponse response;
  return vllm::Inference::NewStub(servers.grpc)
      ->Generate(&context, FromJson<vllm::GenerateRequest>(body), &response)
      .error_message();
}

inline std::string VllmEngine(Servers& servers, const Ask& ask) {
  json sampling = VllmFields(ask);
  for (const char* name : {"allowed_token_ids", "structured_outputs"}) sampling.erase(name);
  Set(&sampling, "truncate_prompt_tokens", ask.truncate);
  if (ask.form)
    sampling[ask.form->kind == "json" ? "json_schema" : ask.form->kind] = FormOf(*ask.form);
  grpc::ClientContext context;
  return EndOf(vllm::grpc::engine::VllmEngine::NewStub(servers.grpc)
                   ->Generate(&context, FromJson<vllm::grpc::engine::GenerateRequest>(
                                            {{"request_id", "r"},
                                             {"tokenized", {{"input_ids", IdsOf(ask.prompt)}}},
                                             {"sampling_params", sampling}})),
               vllm::grpc::engine::GenerateResponse());
}

inline std::string Teacher(Servers& servers, const Ask& ask) {
  json body = {{"token_ids", IdsOf(ask.prompt)},
               {"sampling", {{"temperature", ask.temperature}}},
               {"max_new_tokens", ask.max_tokens},
               {"ignore_eos", true}};
  Set(&body, "cache_salt", ask.cache_salt);
  Set(&body, "n", ask.n);
  if (ask.seed) body["seed"] = static_cast<uint64_t>(*ask.seed);
  if (ask.every_field) {
    body["sampling"].update(kEveryField);
    body["sampling"].erase("stop_token_ids");
    body.update({{"min_new_tokens", 1}, {"stop_token_ids", {30}}});
  }
  grpc::ClientContext context;
  return EndOf(
      v1::Teacher::NewStub(servers.grpc)->Generate(&context, FromJson<v1::GenerateRequest>(body)),
      v1::GenerateResponse());
}

// A protocol, and which of the fields its requests have.
struct Protocol {
  const char* name;
  std::string (*send)(Servers& servers, const Ask& ask);
  bool has_salt = true;
  bool has_n = true;
  bool has_truncation = true;
  bool has_signed_seed = true;
  bool has_allowed_ids = true;
  bool has_forms = true;
  bool has_model_defaults = false;  // obeys generation_config.json
  bool cuts_max_tokens = true;
  bool has_greedy_choices = false;  // takes n > 1 without a temperature
};

inline constexpr Protocol kProtocols[] = {
    {.name = "/v1/completions", .send = Completions, .has_model_defaults = true},
    {.name = "/v1/chat/completions", .send = Chat, .has_model_defaults = true},
    {.name = "/inference/v1/generate", .send = Tokens, .has_truncation = false},
    {.name = "/generate", .send = Sglang, .has_truncation = false},
    {.name = "vllm.Inference", .send = VllmInference, .has_n = false},
    {.name = "VllmEngine", .send = VllmEngine, .has_salt = false, .has_allowed_ids = false},
    {.name = "taopd.v1",
     .send = Teacher,
     .has_truncation = false,
     .has_signed_seed = false,
     .has_forms = false,
     .has_model_defaults = true,
     .cuts_max_tokens = false,
     .has_greedy_choices = true},
};

}  // namespace taopd::testing
