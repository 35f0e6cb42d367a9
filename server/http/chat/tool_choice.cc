#include "server/http/chat/chat.h"

#include <utility>

#include "server/generation/request_fields.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr char kUsage[] =
    "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`";

// Returns the name of a tool's function, or null if it has none.
const std::string* NameOf(const ordered_json& tool) {
  if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object())
    return nullptr;
  const auto found = tool["function"].find("name");
  if (found == tool["function"].end() || !found->is_string()) return nullptr;
  return found->get_ptr<const std::string*>();
}

absl::Status CheckNamed(const ordered_json& choice, const ordered_json& tools) {
  const ordered_json function = choice.value("function", ordered_json());
  if (!function.is_object()) {
    return FieldError("tool_choice.function", "Invalid value for `function` in `tool_choice`! ",
                      kUsage);
  }
  if (!function.contains("name")) {
    return FieldError("tool_choice.function.name",
                      "Expected field `name` in `function` in `tool_choice`! ", kUsage);
  }
  const ordered_json& name = function["name"];
  if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
    return FieldError("tool_choice.function.name",
                      "Invalid `name` in `function` in `tool_choice`! ", kUsage);
  }
  for (const ordered_json& tool : tools) {
    const std::string* const known = NameOf(tool);
    if (known != nullptr && *known == name.get_ref<const std::string&>()) return absl::OkStatus();
  }
  return FieldError(
      "tool_choice",
      "The tool specified in `tool_choice` does not match any of the specified `tools`");
}

absl::Status CheckThereIsAFunction(const ordered_json& tools) {
  for (const ordered_json& tool : tools) {
    if (NameOf(tool) != nullptr) return absl::OkStatus();
  }
  return FieldError("tool_choice",
                    "tool_choice requires a function call, but tools contains no function tool the "
                    "model can call.");
}

ordered_json ParametersOf(const ordered_json& tool) {
  const ordered_json parameters = tool["function"].value("parameters", ordered_json());
  if (parameters.is_object()) return parameters;
  return {{"type", "object"}, {"properties", ordered_json::object()}};
}

// Sets the schema of a list of calls.
absl::Status SchemaOfCalls(const ordered_json& tools, bool parallel, ordered_json* schema) {
  ordered_json any_of = ordered_json::array(), definitions = ordered_json::object();
  for (const ordered_json& tool : tools) {
    const std::string* const name = NameOf(tool);
    if (name == nullptr) continue;
    ordered_json parameters = ParametersOf(tool);
    const ordered_json own = parameters.value("$defs", ordered_json::object());
    if (!own.is_object()) {
      return FieldError("tools", "`$defs` in the parameters of tool '", Excerpt(*name),
                        "' must be an object.");
    }
    for (const auto& [key, value] : own.items()) {
      if (definitions.contains(key) && definitions[key] != value) {
        return FieldError("tools", "Tool definition '", Excerpt(key),
                          "' has multiple schemas, which is not supported.");
      }
      definitions[key] = value;
    }
    parameters.erase("$defs");
    any_of.push_back({{"properties",
                       {{"name", {{"type", "string"}, {"enum", ordered_json::array({*name})}}},
                        {"parameters", std::move(parameters)}}},
                      {"required", {"name", "parameters"}}});
  }
  *schema = {{"type", "array"},
             {"minItems", 1},
             {"items", {{"type", "object"}, {"anyOf", std::move(any_of)}}}};
  if (!parallel) (*schema)["maxItems"] = 1;
  if (!definitions.empty()) (*schema)["$defs"] = std::move(definitions);
  return absl::OkStatus();
}

// Makes the schema the form of all of the answer's text.
void DemandSchema(const ordered_json& schema, ChatRequest* request) {
  request->grammar = RequestedGrammar{{GrammarSpec::Kind::kJsonSchema, JsonText(schema)}, "tools"};
}

}  // namespace

absl::Status ReadToolChoice(JsonFields& fields) {
  const ordered_json* tools = fields.Find("tools");
  const ordered_json* choice = fields.Find("tool_choice");
  if (tools != nullptr && tools->is_array() && tools->empty()) {
    return FieldError("tools",
                      "`tools` must not be an empty array. Either provide at least one tool or "
                      "omit the field entirely.");
  }
  if (choice == nullptr || *choice == ordered_json("none")) return absl::OkStatus();
  if (tools == nullptr) {
    return FieldError("tool_choice", "When using `tool_choice`, `tools` must be set.");
  }
  if (*choice == ordered_json("auto")) return absl::OkStatus();
  if (*choice == ordered_json("required")) return CheckThereIsAFunction(*tools);
  if (choice->is_object()) return CheckNamed(*choice, *tools);
  return FieldError("tool_choice", "Invalid value for `tool_choice`: ",
                    choice->is_string() ? Excerpt(choice->get_ref<const std::string&>())
                                        : std::string(choice->type_name()),
                    "! Only named tools, \"none\", \"auto\" or \"required\" are supported.");
}

absl::Status ReadToolCalls(JsonFields& fields, const ordered_json& tools, const ServedModel& model,
                           ChatRequest* request) {
  request->parallel_tool_calls = fields.Bool("parallel_tool_calls").value_or(true);
  const ordered_json* choice = fields.Find("tool_choice");
  if (!tools.is_array()) return absl::OkStatus();
  if (choice != nullptr && *choice == ordered_json("none")) return absl::OkStatus();
  if (choice != nullptr && *choice == ordered_json("required")) {
    ordered_json schema;
    TAOPD_RETURN_IF_ERROR(SchemaOfCalls(tools, request->parallel_tool_calls, &schema));
    DemandSchema(schema, request);
    request->forced_calls = ForcedCalls::kList;
    return absl::OkStatus();
  }
  if (choice != nullptr && choice->is_object()) {
    const ordered_json* outputs = fields.Find("structured_outputs");
    if (outputs != nullptr && outputs->is_object() &&
        (outputs->contains("json") || outputs->contains("regex") || outputs->contains("choice"))) {
      return InvalidArgument(
          "You can only either use constraints for structured outputs or tools, not both.");
    }
    request->forced_function = choice->at("function").at("name").get<std::string>();
    for (const ordered_json& tool : tools) {
      const std::string* const name = NameOf(tool);
      if (name == nullptr || *name != request->forced_function) continue;
      DemandSchema(ParametersOf(tool), request);
      break;
    }
    request->forced_calls = ForcedCalls::kFunction;
    return absl::OkStatus();
  }
  request->tool_calls = model.tool_call_format;
  // Some models have the tags as special tokens.
  if (request->tool_calls == ToolCallFormat::kHermes) request->skip_special_tokens = false;
  return absl::OkStatus();
}

}  // namespace taopd
