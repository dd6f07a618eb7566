/* SPDX-License-Identifier: MIT */
/* Random JSON schemas, values for them, their texts, and a validator: the other opinion the grammars are
 * compared with. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "gramtest.h"

#include <check.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"a",     "ab",       "abc", "kind", "kinds", "value", "the",
                                    "there", "\xc3\xa9", "q\"", "n\n",  "",      "in"};
static const char *const texts[] = {"",
                                    "a",
                                    "the",
                                    "then",
                                    "x y",
                                    "\"quoted\"",
                                    "back\\slash",
                                    "\xe4\xb8\xad\xe6\x96\x87",
                                    "\xf0\x9f\x98\x80",
                                    "line\nend",
                                    "\x01\x1f"};
static const struct {
    const char *pattern, *samples[4];
} patterns[] = {
    {"^[a-z]+$", {"the", "q", "zebra", "in"}},
    {"^\\d{4}-\\d{2}-\\d{2}$", {"2026-11-30", "0000-00-00", "1999-12-31", "2000-01-01"}},
    {"the|in", {"the", "within", "inthe", "other"}},
    {"^(?:[A-Z][a-z]*)( [A-Z][a-z]*)*$", {"A", "The End", "In The Air", "Ab"}},
    {"[^\\s\"]{2}$", {"ab", "x yz", "\xe4\xb8\xad\xe6\x96\x87", "\\\\"}},
    {"^.?$", {"", "x", "\xc3\xa9", "\""}},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

const char *gt_name(uint32_t i) {
    return i < COUNT(names) ? names[i] : NULL;
}

static bool matches(const char *pattern, const char *text, size_t n) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_MATCH_UNSET_BACKREF, &code, &at, NULL);
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    bool yes = re && m && pcre2_match(re, (PCRE2_SPTR)text, n, 0, 0, m, NULL) >= 0;

    must(re && m);
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return yes;
}

static bool has_type(const char *type, const json_t *v) {
    static const struct {
        const char *name;
        json_type a, b;
    } types[] = {{"object", JSON_OBJECT, JSON_OBJECT},    {"array", JSON_ARRAY, JSON_ARRAY},
                 {"string", JSON_STRING, JSON_STRING},    {"number", JSON_INTEGER, JSON_REAL},
                 {"integer", JSON_INTEGER, JSON_INTEGER}, {"boolean", JSON_TRUE, JSON_FALSE},
                 {"null", JSON_NULL, JSON_NULL}};

    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(types[i].name, type) == 0)
            return json_typeof(v) == types[i].a || json_typeof(v) == types[i].b;
    ck_abort_msg("type %s", type);
    return false;
}

static const json_t *follow(const json_t *root, const char *ref) {
    const json_t *cur = root;
    char copy[64], *save = NULL;

    snprintf(copy, sizeof copy, "%s", ref + 1);
    for (char *seg = strtok_r(copy, "/", &save); seg; seg = strtok_r(NULL, "/", &save))
        cur = json_object_get(cur, seg);
    must(cur);
    return cur;
}

static size_t chars_of(const json_t *v) {
    const char *s = json_string_value(v);
    size_t n = 0;

    for (size_t i = 0; i < json_string_length(v); i++)
        n += (s[i] & 0xc0) != 0x80;
    return n;
}

static bool valid(const json_t *root, const json_t *schema, const json_t *v);

static bool valid_object(const json_t *root, const json_t *s, const json_t *v) {
    const json_t *props = json_object_get(s, "properties"),
                 *other = json_object_get(s, "additionalProperties"), *item;
    const char *key;
    size_t i;

    json_array_foreach(json_object_get(s, "required"), i, item) {
        if (!json_object_get(v, json_string_value(item)))
            return false;
    }
    json_object_foreach((json_t *)v, key, item) {
        const json_t *p = json_object_get(props, key);

        if (p ? !valid(root, p, item) : other && !valid(root, other, item))
            return false;
    }
    return true;
}

static bool valid_array(const json_t *root, const json_t *s, const json_t *v) {
    const json_t *first = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items"), *item;
    const json_t *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems");
    size_t i, n = json_array_size(v);

    if ((min && (json_int_t)n < json_integer_value(min)) || (max && (json_int_t)n > json_integer_value(max)))
        return false;
    json_array_foreach(v, i, item) {
        const json_t *p = i < json_array_size(first) ? json_array_get(first, i) : rest;

        if (p && !valid(root, p, item))
            return false;
    }
    return true;
}

static bool valid_scalar(const json_t *s, const json_t *v) {
    const json_t *k;

    if (json_is_string(v)) {
        if ((k = json_object_get(s, "minLength")) && (json_int_t)chars_of(v) < json_integer_value(k))
            return false;
        if ((k = json_object_get(s, "maxLength")) && (json_int_t)chars_of(v) > json_integer_value(k))
            return false;
        k = json_object_get(s, "pattern");
        return !k || matches(json_string_value(k), json_string_value(v), json_string_length(v));
    }
    if (!json_is_number(v))
        return true;
    if ((k = json_object_get(s, "minimum")) && json_number_value(v) < json_number_value(k))
        return false;
    if ((k = json_object_get(s, "maximum")) && json_number_value(v) > json_number_value(k))
        return false;
    if ((k = json_object_get(s, "exclusiveMinimum")) && json_number_value(v) <= json_number_value(k))
        return false;
    k = json_object_get(s, "exclusiveMaximum");
    return !k || json_number_value(v) < json_number_value(k);
}

static bool valid_type(const json_t *s, const json_t *v) {
    const json_t *type = json_object_get(s, "type"), *item;
    bool yes = !type || (json_is_string(type) && has_type(json_string_value(type), v));
    size_t i;

    if (json_is_array(type)) {
        json_array_foreach(type, i, item) {
            yes = yes || has_type(json_string_value(item), v);
        }
    }
    return yes || (json_is_true(json_object_get(s, "nullable")) && json_is_null(v));
}

static bool valid_one(const json_t *root, const json_t *s, const json_t *v) {
    const json_t *k, *item;
    bool yes = false;
    size_t i;

    if (json_is_boolean(s))
        return json_is_true(s);
    if ((k = json_object_get(s, "$ref")))
        return valid(root, follow(root, json_string_value(k)), v);
    k = json_object_get(s, "anyOf");
    k = k ? k : json_object_get(s, "enum");
    if (k) {
        json_array_foreach(k, i, item) {
            yes = yes || (json_object_get(s, "anyOf") ? valid(root, item, v) : json_equal(item, v));
        }
        return yes && valid_type(s, v);
    }
    if ((k = json_object_get(s, "const")))
        return json_equal(k, v);
    return valid_type(s, v) && valid_scalar(s, v) && (!json_is_object(v) || valid_object(root, s, v)) &&
           (!json_is_array(v) || valid_array(root, s, v));
}

/* Schemas that only refer to themselves let nothing through: so many in a row for one value, and so many in
 * all. */
static unsigned budget, chain;
static const json_t *last;

static bool valid(const json_t *root, const json_t *s, const json_t *v) {
    unsigned was_chain = chain;
    const json_t *was_last = last;
    bool yes;

    chain = v == last ? chain + 1 : 0;
    last = v;
    if (!budget || chain > 40)
        yes = false;
    else {
        budget--;
        yes = valid_one(root, s, v);
    }
    chain = was_chain;
    last = was_last;
    return yes;
}

bool gt_valid(const json_t *schema, const json_t *value) {
    budget = 40000;
    return valid(schema, schema, value);
}

/* ---- random schemas ---- */

static uint32_t below(struct texttest_rng *r, uint32_t n) {
    return texttest_below(r, n);
}

static json_t *random_plain(struct texttest_rng *r, int depth) {
    json_t *v;

    switch (below(r, depth > 0 ? 8 : 6)) {
    case 0:
        return json_string(texts[below(r, COUNT(texts))]);
    case 1:
        return json_integer((json_int_t)below(r, 300) - 100);
    case 2:
        return json_real((double)below(r, 800) / 8 - 50.0625);
    case 3:
        return json_boolean(below(r, 2));
    case 4:
        return json_null();
    case 5:
        return json_string(names[below(r, COUNT(names))]);
    case 6:
        v = json_array();
        for (uint32_t n = below(r, 4); n > 0; n--)
            json_array_append_new(v, random_plain(r, depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t n = below(r, 4); n > 0; n--)
            json_object_set_new(v, names[below(r, COUNT(names))], random_plain(r, depth - 1));
        return v;
    }
}

static json_t *random_schema(struct texttest_rng *r, int depth);

static void random_object(struct texttest_rng *r, json_t *s, int depth) {
    json_t *props = json_object(), *required = json_array();

    for (uint32_t n = below(r, 5); n > 0; n--) {
        const char *name = names[below(r, COUNT(names))];

        json_object_set_new(props, name, random_schema(r, depth - 1));
        if (below(r, 2))
            json_array_append_new(required, json_string(name));
    }
    if (below(r, 12) == 0)
        json_array_append_new(required, json_string(names[below(r, COUNT(names))]));
    json_object_set_new(s, "properties", props);
    json_object_set_new(s, "required", required);
    if (below(r, 4))
        json_object_set_new(s, "additionalProperties", json_false());
    else if (below(r, 2))
        json_object_set_new(s, "additionalProperties", random_schema(r, depth - 1));
}

static void random_array(struct texttest_rng *r, json_t *s, int depth) {
    uint32_t min = below(r, 3);

    if (below(r, 5))
        json_object_set_new(s, "items", below(r, 8) ? random_schema(r, depth - 1) : json_false());
    if (below(r, 3) == 0) {
        json_t *first = json_array();

        for (uint32_t n = 1 + below(r, 3); n > 0; n--)
            json_array_append_new(first, random_schema(r, depth - 1));
        json_object_set_new(s, "prefixItems", first);
    }
    if (below(r, 2))
        json_object_set_new(s, "minItems", json_integer(min));
    if (below(r, 2))
        json_object_set_new(s, "maxItems", json_integer(min + below(r, 4)));
}

static void random_string(struct texttest_rng *r, json_t *s) {
    uint32_t min = below(r, 6);

    if (below(r, 3) == 0)
        json_object_set_new(s, "pattern", json_string(patterns[below(r, COUNT(patterns))].pattern));
    if (below(r, 3) == 0)
        json_object_set_new(s, "minLength", json_integer(min));
    if (below(r, 3) == 0)
        json_object_set_new(s, "maxLength", json_integer(min + below(r, 20)));
}

static void random_number(struct texttest_rng *r, json_t *s) {
    json_int_t low = (json_int_t)below(r, 400) - 200;

    if (below(r, 2))
        json_object_set_new(s, below(r, 3) ? "minimum" : "exclusiveMinimum", json_integer(low));
    if (below(r, 2))
        json_object_set_new(s, below(r, 3) ? "maximum" : "exclusiveMaximum",
                            json_integer(low + (json_int_t)below(r, below(r, 2) ? 5 : 5000)));
}

static json_t *random_typed(struct texttest_rng *r, int depth) {
    static const char *const types[] = {"string", "number", "integer", "boolean", "null", "array", "object"};
    uint32_t k = below(r, depth > 0 ? 10 : 5);
    const char *type = types[k < 7 ? k : 6];
    json_t *s = json_object();

    json_object_set_new(s, "type", json_string(type));
    if (below(r, 8) == 0)
        json_object_set_new(s, "nullable", json_true());
    if (below(r, 8) == 0)
        json_object_set_new(s, "type", json_pack("[s,s]", type, types[below(r, 5)]));
    if (below(r, 16) == 0)
        json_object_del(s, "type");
    if (k == 0)
        random_string(r, s);
    else if (k < 3)
        random_number(r, s);
    else if (k == 5)
        random_array(r, s, depth);
    else if (k > 5)
        random_object(r, s, depth);
    return s;
}

static json_t *random_schema(struct texttest_rng *r, int depth) {
    json_t *s, *list;

    switch (below(r, 16)) {
    case 0:
        list = json_array();
        for (uint32_t n = 1 + below(r, 6); n > 0; n--)
            json_array_append_new(list, random_plain(r, 1));
        return json_pack("{s:o}", "enum", list);
    case 1:
        return json_pack("{s:o}", "const", random_plain(r, 2));
    case 2:
    case 3:
        if (depth == 0)
            break;
        list = json_array();
        for (uint32_t n = 1 + below(r, 3); n > 0; n--)
            json_array_append_new(list, random_schema(r, depth - 1));
        return json_pack("{s:o}", "anyOf", list);
    case 4:
        return json_pack("{s:s}", "$ref", below(r, 2) ? "#/$defs/one" : "#/$defs/two");
    case 5:
        return below(r, 2) ? json_true() : json_object();
    default:
        break;
    }
    s = random_typed(r, depth);
    json_object_set_new(s, "description", json_string("x"));
    return s;
}

json_t *gt_random_schema(struct texttest_rng *r) {
    json_t *s = random_schema(r, 3);

    if (!json_is_object(s)) {
        json_decref(s);
        s = json_object();
    }
    json_object_set_new(s, "$defs",
                        json_pack("{s:o,s:o}", "one", random_schema(r, 2), "two", random_schema(r, 2)));
    return s;
}

/* ---- random values ---- */

static json_t *value_for(struct texttest_rng *r, const json_t *root, const json_t *s, int depth);

static unsigned tries_left;

static json_t *object_for(struct texttest_rng *r, const json_t *root, const json_t *s, int depth) {
    const json_t *props = json_object_get(s, "properties"),
                 *other = json_object_get(s, "additionalProperties"), *item;
    json_t *v = json_object(), *one;
    const char *key;
    size_t i;

    json_object_foreach((json_t *)props, key, item) {
        if (below(r, 2) && (one = value_for(r, root, item, depth - 1)))
            json_object_set_new(v, key, one);
    }
    json_array_foreach(json_object_get(s, "required"), i, item) {
        const json_t *p = json_object_get(props, json_string_value(item));

        p = p ? p : other ? other : json_true();
        if (!json_object_get(v, json_string_value(item)) && (one = value_for(r, root, p, depth - 1)))
            json_object_set_new(v, json_string_value(item), one);
    }
    for (uint32_t n = below(r, 3); n > 0; n--) {
        key = below(r, 2) ? names[below(r, COUNT(names))] : texts[below(r, COUNT(texts))];
        if (!json_object_get(props, key) &&
            (one = value_for(r, root, other ? other : json_true(), depth - 1)))
            json_object_set_new(v, key, one);
    }
    return v;
}

static json_t *array_for(struct texttest_rng *r, const json_t *root, const json_t *s, int depth) {
    const json_t *first = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items");
    json_int_t n = json_integer_value(json_object_get(s, "minItems")) + (json_int_t)below(r, 3);
    json_t *v = json_array(), *one;

    for (json_int_t i = 0; i < n; i++) {
        const json_t *p = i < (json_int_t)json_array_size(first) ? json_array_get(first, (size_t)i) : rest;

        one = value_for(r, root, p ? p : json_true(), depth - 1);
        if (!one)
            break;
        json_array_append_new(v, one);
    }
    return v;
}

static json_t *string_for(struct texttest_rng *r, const json_t *s) {
    const json_t *p = json_object_get(s, "pattern");
    char text[256] = "";
    uint32_t n = below(r, 8);

    for (size_t k = 0; p && k < COUNT(patterns); k++)
        if (strcmp(patterns[k].pattern, json_string_value(p)) == 0)
            return json_string(patterns[k].samples[below(r, 4)]);
    for (uint32_t i = 0; i < n; i++)
        strcat(text, texts[below(r, COUNT(texts))]);
    return json_string(text);
}

static json_t *number_for(struct texttest_rng *r, const json_t *s, bool integer) {
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    const json_t *near = json_object_get(s, keys[below(r, 4)]);
    json_int_t at = (near ? json_integer_value(near) : 0) + (json_int_t)below(r, 7) - 3;

    if (below(r, 6) == 0)
        at += (json_int_t)below(r, 20000) - 10000;
    return integer ? json_integer(at) : json_real((double)at + (double)below(r, 16) / 16);
}

static json_t *typed_for(struct texttest_rng *r, const json_t *root, const json_t *s, int depth) {
    switch (below(r, depth > 0 ? 8 : 6)) {
    case 0:
    case 1:
        return string_for(r, s);
    case 2:
        return number_for(r, s, true);
    case 3:
        return number_for(r, s, false);
    case 4:
        return json_boolean(below(r, 2));
    case 5:
        return json_null();
    case 6:
        return array_for(r, root, s, depth);
    default:
        return object_for(r, root, s, depth);
    }
}

/* One that is valid: a few tries. */
static json_t *value_for(struct texttest_rng *r, const json_t *root, const json_t *s, int depth) {
    const json_t *k;

    if (json_is_false(s) || depth < 0)
        return NULL;
    if ((k = json_object_get(s, "$ref")))
        return value_for(r, root, follow(root, json_string_value(k)), depth - 1);
    for (int tries = 0; tries < 20 && tries_left > 0; tries++, tries_left--) {
        json_t *v;

        if ((k = json_object_get(s, "anyOf")))
            v = value_for(r, root, json_array_get(k, below(r, (uint32_t)json_array_size(k))), depth - 1);
        else if ((k = json_object_get(s, "enum")))
            v = json_incref(json_array_get(k, below(r, (uint32_t)json_array_size(k))));
        else if ((k = json_object_get(s, "const")))
            v = json_incref((json_t *)k);
        else
            v = typed_for(r, root, s, depth);
        budget = 400;
        if (v && valid(root, s, v))
            return v;
        json_decref(v);
    }
    return NULL;
}

json_t *gt_random_value(struct texttest_rng *r, const json_t *schema) {
    tries_left = 200;
    return value_for(r, schema, schema, 7);
}
