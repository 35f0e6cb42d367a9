#include "common/pch/json_templates.h"

#ifdef TAOPD_JSON_TEMPLATES
TAOPD_JSON_TEMPLATES(template)
#endif
