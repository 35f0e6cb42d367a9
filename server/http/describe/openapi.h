// The description of the HTTP server, made from RouteDocs.
#pragma once

#include <string>

namespace taopd {

// An OpenAPI 3.1 document.
std::string OpenApiJson();
// A plain page that lists routes and fields. It loads nothing from elsewhere.
std::string DocsPage();

}  // namespace taopd
