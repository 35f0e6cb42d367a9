#include "server/http/request/structured_output.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/io/jsonl.h"
#include "server/generation/engine_requests.h"
#include "server/generation/request_fields.h"
#include "server/http/http_error.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;
using Kind = GrammarSpec::Kind;

constexpr char kFormat[] = "response_format";
constexpr char kOutputs[] = "structured_outputs";
constexpr size_t kMaxChoices = 10'000;

// The form that the fields ask for. A request may ask for one only.
struct RequestedForm {
  int num_kinds = 0;
  RequestedGrammar grammar;

  void Set(GrammarSpec spec, const char* field) {
    ++num_kinds;
    grammar = {std::move(spec), field};
  }
};

// Reads response_format of the type json_schema.
absl::Status ReadFormatSchema(JsonFields& format, RequestedForm* form) {
  if (format.Find("json_schema") == nullptr) {
    return FieldError(
        kFormat,
        "When response_format type is 'json_schema', the 'json_schema' field must be provided.");
  }
  JsonFields& schema = format.Nested("json_schema");
  TAOPD_RETURN_IF_ERROR(format.error());
  if (!schema.Text("name") && schema.error().ok())
    return WrongType("response_format.json_schema.name", "a valid string");
  schema.Text("description");
  schema.Bool("strict");  // the text follows the schema in any case
  const ordered_json* value = schema.Find("schema");
  TAOPD_RETURN_IF_ERROR(schema.error());
  if (value == nullptr || !value->is_object())
    return WrongType("response_format.json_schema.schema", "a valid dictionary");
  form->Set({Kind::kJsonSchema, JsonText(*value)}, "response_format.json_schema.schema");
  return absl::OkStatus();
}

absl::Status ReadFormat(JsonFields& fields, RequestedForm* form) {
  const ordered_json* format = fields.Find(kFormat);
  if (format == nullptr) return absl::OkStatus();
  const char* const types = "'text', 'json_object', 'json_schema' or 'structural_tag'";
  JsonFields& nested = fields.Nested(kFormat);
  TAOPD_RETURN_IF_ERROR(fields.error());
  const std::optional<std::string> type = nested.Text("type");
  if (!type) return WrongType("response_format.type", types);
  if (*type == "text") return absl::OkStatus();
  if (*type == "json_object") {
    form->Set(GrammarOfAnyObject(), kFormat);
    return absl::OkStatus();
  }
  if (*type == "structural_tag") {
    for (const char* name : {"format", "structures", "triggers"}) nested.Find(name);
    form->Set({Kind::kStructuralTag, JsonText(*format)}, kFormat);
    return absl::OkStatus();
  }
  if (*type == "json_schema") return ReadFormatSchema(nested, form);
  return WrongType("response_format.type", types);
}

absl::Status ReadSchema(const ordered_json* schema, RequestedForm* form) {
  if (schema == nullptr) return absl::OkStatus();
  constexpr char kSchema[] = "structured_outputs.json";
  if (!schema->is_string() && !schema->is_object())
    return WrongType(kSchema, "a valid string or dictionary");
  const std::string text = schema->is_string() ? schema->get<std::string>() : JsonText(*schema);
  form->Set({Kind::kJsonSchema, text}, kSchema);
  return absl::OkStatus();
}

absl::Status ReadChoices(JsonFields& nested, RequestedForm* form) {
  if (nested.Find("choice") == nullptr) return absl::OkStatus();
  const std::vector<std::string> choices = nested.Texts("choice");
  TAOPD_RETURN_IF_ERROR(nested.error());
  if (choices.empty()) return FieldError(kOutputs, "Choice '[]' cannot be an empty list");
  if (choices.size() > kMaxChoices) {
    return FieldError(kOutputs, "structured_outputs.choice has ", choices.size(),
                      " choices, the limit is ", kMaxChoices);
  }
  form->Set(GrammarOfChoices(choices), "structured_outputs.choice");
  return absl::OkStatus();
}

absl::Status ReadOutputs(JsonFields& fields, RequestedForm* form) {
  if (fields.Find(kOutputs) == nullptr) return absl::OkStatus();
  JsonFields& nested = fields.Nested(kOutputs);
  TAOPD_RETURN_IF_ERROR(fields.error());
  const ordered_json* schema = nested.Find("json");
  const std::optional<std::string> regex = nested.Text("regex");
  if ((schema != nullptr) + regex.has_value() + (nested.Find("choice") != nullptr) > 1) {
    return FieldError(kOutputs,
                      "You can only use one kind of constraints for structured outputs ('json', "
                      "'regex' or 'choice').");
  }
  const int num_kinds_before = form->num_kinds;
  TAOPD_RETURN_IF_ERROR(ReadSchema(schema, form));
  if (regex) form->Set({Kind::kRegex, *regex}, "structured_outputs.regex");
  TAOPD_RETURN_IF_ERROR(ReadChoices(nested, form));
  if (auto grammar = nested.Text("grammar"))
    form->Set(GrammarOfText(*std::move(grammar)), "structured_outputs.grammar");
  if (nested.Bool("json_object").value_or(false))
    form->Set(GrammarOfAnyObject(), "structured_outputs.json_object");
  if (auto tag = nested.Text("structural_tag"))
    form->Set({Kind::kStructuralTag, *std::move(tag)}, "structured_outputs.structural_tag");
  form->grammar.spec.any_whitespace = !nested.Bool("disable_any_whitespace").value_or(false);
  for (const char* name : {"whitespace_pattern", "disable_additional_properties"}) {
    const ordered_json* value = nested.Find(name);
    if (value != nullptr && *value != ordered_json(false)) {
      return FieldError(kOutputs, "structured_outputs.", name, " is not supported by this server.");
    }
  }
  TAOPD_RETURN_IF_ERROR(nested.error());
  if (form->num_kinds == num_kinds_before) {
    return FieldError(
        kOutputs, "You must use one kind of structured outputs constraint but none are specified");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadStructuredOutput(JsonFields& fields, GenerationRequest* request) {
  RequestedForm form;
  TAOPD_RETURN_IF_ERROR(ReadOutputs(fields, &form));
  TAOPD_RETURN_IF_ERROR(ReadFormat(fields, &form));
  if (form.num_kinds == 0) return absl::OkStatus();
  if (form.num_kinds > 1) {
    return FieldError(
        kOutputs,
        "You can only use one kind of structured outputs constraint but multiple are specified");
  }
  request->grammar = std::move(form.grammar);
  return absl::OkStatus();
}

absl::Status CompileGrammar(const Caller& caller, const ServedModel& model,
                            GenerationRequest* request) {
  if (!request->grammar) return absl::OkStatus();
  const std::string& field = request->grammar->field;
  const std::string parameter = field.substr(0, field.find('.'));
  if (model.grammar_compiler == nullptr) {
    return FieldError(
        parameter, field,
        ": the model directory has no tokenizer.json, which structured outputs need.");
  }
  TAOPD_RETURN_IF_ERROR(ValidateChoices(*request, model.limits));
  auto grammar = model.grammar_compiler->Compile({.spec = request->grammar->spec,
                                                  .field = field,
                                                  .client = caller.client,
                                                  .deadline = caller.deadline,
                                                  .is_gone = caller.is_gone});
  if (absl::IsInvalidArgument(grammar.status())) {
    return FieldError(parameter, std::string(grammar.status().message()));
  }
  TAOPD_RETURN_IF_ERROR(grammar.status());
  request->compiled_grammar = *std::move(grammar);
  return absl::OkStatus();
}

}  // namespace taopd
