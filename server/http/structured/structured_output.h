// The fields that say what form a generated text has: response_format, structured_outputs, and the
// grammar that they come to. Names and messages are vLLM's.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Reads both fields. A schema that is a JSON object is not written into the request yet, because
// its keys have lost their order here (FinishStructuredOutput).
absl::Status ReadStructuredOutput(JsonFields& fields, GenerationRequest* request);

// Takes the schema out of the body's text, with the keys in their order, which is that of the
// generated text. `place` are the keys of the body under which ReadStructuredOutput has read. The
// text of a body is parsed again, if there is such a schema.
absl::Status FinishStructuredOutput(const std::string& body, const std::vector<std::string>& place,
                                    GenerationRequest* request);

absl::Status FinishStructuredOutput(const nlohmann::ordered_json& body,
                                    const std::vector<std::string>& place,
                                    GenerationRequest* request);

// Compiles the request's grammar, if it has one, and waits for it. Nothing is compiled for a
// request that the engine would refuse. To be called once the request is complete, on the thread
// that answers it.
absl::Status CompileGrammar(const Caller& caller, const ServedModel& model,
                            GenerationRequest* request);

}  // namespace taopd
