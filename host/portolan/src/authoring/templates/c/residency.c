// Data stays in its own jurisdiction; sites of one further jurisdiction may compute on it without keeping it.
#include "portolan.h"

// {"compute_also_in": "us"}; empty: nowhere else.
static text compute_also_in;
static const name_tables *tables;

const char *configure(text config, const name_tables *names) {
    tables = names; // they stay valid
    setting settings[] = {{"compute_also_in", 0, &compute_also_in}};
    return settings_read(config, settings, 1);
}

placement partition(const subject *subject, request_row request, size_t site) {
    (void)request;
    uint32_t data = subject->data_jurisdiction;
    uint32_t here = tables->sites.items[site].jurisdiction;
    if (data == ANY_JURISDICTION || data == here) return RESIDENT;
    bool known = here < tables->jurisdictions.count && compute_also_in.length > 0;
    return known && text_equals(tables->jurisdictions.items[here], compute_also_in) ? TRANSIENT : DENIED;
}
