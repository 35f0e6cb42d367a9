#include "server/http/routes/openapi.h"

#include <absl/strings/str_replace.h>

#include <nlohmann/json.hpp>

#include "server/http/request/field_table.h"
#include "server/options/version.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

ordered_json SchemaOf(const std::vector<FieldDoc>& fields) {
  ordered_json properties = ordered_json::object();
  for (const FieldDoc& field : fields) {
    ordered_json property = ordered_json::object();
    if (std::string(field.type) != "any") property["type"] = {field.type, "null"};
    property["description"] = field.text;
    properties[field.name] = std::move(property);
  }
  ordered_json schema;
  schema["type"] = "object";
  schema["properties"] = std::move(properties);
  return schema;
}

ordered_json AnswerOf(const char* description, const char* type) {
  ordered_json answer;
  answer["description"] = description;
  answer["content"][type] = ordered_json::object();
  return answer;
}

ordered_json OperationOf(const RouteDoc& route) {
  ordered_json operation;
  operation["summary"] = route.text;
  if (std::string(route.method) == "POST") {
    ordered_json schema = SchemaOf(route.fields);
    if (!route.sampling_fields.empty())
      schema["properties"]["sampling_params"] = SchemaOf(route.sampling_fields);
    operation["requestBody"]["required"] = true;
    operation["requestBody"]["content"]["application/json"]["schema"] = std::move(schema);
  }
  operation["responses"]["200"] = AnswerOf("The answer.", route.answer_type);
  if (std::string(route.method) == "POST")
    operation["responses"]["400"] = AnswerOf("The request is wrong.", "application/json");
  operation["responses"]["503"] = AnswerOf("The model is not ready.", "application/json");
  return operation;
}

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string TableOf(const std::vector<FieldDoc>& fields) {
  if (fields.empty()) return "";
  std::string out = "<table>\n<tr><th>field</th><th>type</th><th></th></tr>\n";
  for (const FieldDoc& field : fields) {
    out += std::string("<tr><td><code>") + field.name + "</code></td><td>" + field.type +
           "</td><td>" + Escape(field.text) + "</td></tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace

std::string OpenApiJson() {
  ordered_json document;
  document["openapi"] = "3.1.0";
  document["info"] = {{"title", "taopd-teacher"}, {"version", kTeacherVersion}};
  for (const RouteDoc& route : RouteDocs()) {
    const bool is_get = std::string(route.method) == "GET";
    document["paths"][route.path][is_get ? "get" : "post"] = OperationOf(route);
  }
  return document.dump();
}

std::string DocsPage() {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta "
      "charset=\"utf-8\"><title>taopd-teacher</title>\n"
      "<style>body{font-family:sans-serif;max-width:60em;margin:2em auto}"
      "td,th{text-align:left;padding:0 1em 0 0;vertical-align:top}</style></head>\n<body>\n"
      "<h1>taopd-teacher</h1>\n"
      "<p>For programs: <a href=\"/openapi.json\">/openapi.json</a>.</p>\n";
  for (const RouteDoc& route : RouteDocs()) {
    out += std::string("<h2><code>") + route.method + " " + route.path + "</code></h2>\n<p>" +
           Escape(route.text) + "</p>\n" + TableOf(route.fields);
    if (!route.sampling_fields.empty())
      out += "<h3><code>sampling_params</code></h3>\n" + TableOf(route.sampling_fields);
  }
  return out + "</body></html>\n";
}

}  // namespace taopd
