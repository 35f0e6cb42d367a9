#include "common/text/jinja/template.h"

#include <utility>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/jinja/runtime/renderer.h"
#include "common/text/jinja/syntax/syntax.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

absl::Status ToStatus(const TemplateError& error, Position position) {
  if (error.position().line > 0) position = error.position();
  return absl::Status(error.code(), Concat("line ", position.line, ", column ", position.column,
                                           ": ", error.what()));
}

}  // namespace

Template::Template(std::shared_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

absl::StatusOr<Template> Template::Parse(std::string_view source, const LexerOptions& options) {
  if (static_cast<int64_t>(source.size()) > kMaxTemplateBytes) {
    return ResourceExhausted("template of ", source.size(), " bytes exceeds the limit of ",
                             kMaxTemplateBytes);
  }
  if (!IsValidUtf8(source)) return InvalidArgument("template is not valid UTF-8");
  try {
    return Template(std::make_shared<const Syntax>(ParseTemplate(source, options)));
  } catch (const TemplateError& error) {
    return ToStatus(error, {1, 1});
  }
}

absl::StatusOr<Rendering> Template::Render(const nlohmann::ordered_json& context,
                                           const RenderOptions& options) const {
  Renderer renderer(*syntax_, options);
  try {
    return renderer.Render(context);
  } catch (const TemplateError& error) {
    return ToStatus(error, renderer.position());
  }
}

}  // namespace taopd::jinja
