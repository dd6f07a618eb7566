/* SPDX-License-Identifier: MIT */
/*
 * libglmd: talk to the glmd daemon of this machine.
 *
 * The daemon keeps one language model resident.  A program opens a connection, submits requests
 * and pulls events; the tokens of an answer lie in memory shared with the daemon and are read in
 * place.  A whole program:
 *
 *     glmd_conn *c;
 *     glmd_req *r;
 *     struct glmd_event ev = { .size = sizeof ev };
 *     uint64_t tag;
 *
 *     if (glmd_connect(NULL, &c) < 0) ...
 *     glmd_req_new(c, &r);
 *     glmd_req_message(r, GLMD_ROLE_USER, "Hello", 5);
 *     glmd_submit(c, r, &tag);
 *     do {
 *         glmd_wait(c, -1);
 *         while (glmd_next(c, &ev) == 1 && ev.type != GLMD_EV_END)
 *             fwrite(ev.text, 1, ev.text_len, stdout);
 *     } while (ev.type != GLMD_EV_END);
 *     glmd_close(c);
 *
 * Rules that hold everywhere
 * - Functions returning int give 0 or a positive number on success and a negative errno on failure;
 *   errno itself is not part of the interface.  Outputs are the last arguments, named ret_*, and are
 *   untouched on failure.
 * - Strings come with their length and need no NUL.  Text is UTF-8.
 * - Structures start with `size`: the caller stores sizeof before the call, the library reads or
 *   writes no more than that.  Fields are only ever added at the end.  Zero every other field of a
 *   structure the library reads.
 * - A connection and everything got from it belongs to one thread at a time.  Only glmd_wakeup() and
 *   glmd_cancel_async() may be called from another thread while a call is running; nothing may be
 *   called while or after glmd_close() runs.  Different connections are independent.
 * - After fork() a connection is dead in the child: every call returns -ECHILD and only glmd_close()
 *   is useful.  The parent is not disturbed.
 * - The library starts no thread, installs no signal handler and writes nothing to any stream.
 *
 * Error numbers with a fixed meaning
 *     -EAGAIN          nothing now                 -EBADMSG      the request is malformed
 *     -EBUSY           too many live requests      -ECANCELED    cancelled
 *     -ECHILD          used after fork             -EDQUOT       quota of this user is used up
 *     -EMSGSIZE        too large                   -ENOBUFS      rings full: dispatch, then try again
 *     -ENODATA         nothing to resume there
 *     -EOPNOTSUPP      not granted by this daemon  -EOVERFLOW    longer than the context
 *     -EPIPE           the daemon is gone          -EPROTO       the daemon broke the protocol
 *     -EPROTONOSUPPORT no common protocol version  -ESHUTDOWN    the daemon is draining
 *     -ETIMEDOUT       deadline passed, or the answer was not read for too long
 */
#ifndef GLMD_H
#define GLMD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GLMD_API __attribute__((visibility("default")))
#else
#define GLMD_API
#endif

#define GLMD_VERSION_MAJOR 0
#define GLMD_VERSION_MINOR 1
#define GLMD_VERSION_PATCH 0

/* Where glmd_connect() looks when neither the options nor $GLMD_SOCKET name a socket: below $XDG_RUNTIME_DIR,
 * where a daemon started by the user listens, if a socket of the caller's own lies there; else the system's.
 */
#define GLMD_USER_SOCKET    "glmd/glmd.sock"
#define GLMD_DEFAULT_SOCKET "/run/glmd/glmd.sock"

typedef struct glmd_conn glmd_conn;
typedef struct glmd_req glmd_req;

/* ---------------------------------------------------------------------------------------------- */
/* Version and errors                                                                             */

/* Version of the library in use: major << 16 | minor << 8 | patch. */
GLMD_API uint32_t glmd_version(void);

/* Text for an error number of this library, negative or positive; static storage, never NULL. */
GLMD_API const char *glmd_strerror(int r);

/* Debug lines (never prompts or outputs): connection made, connection lost and why.  One callback per
 * process; set it before the first connection is opened.  NULL turns it off, which is the default. */
typedef void (*glmd_log_fn)(void *userdata, const char *line, size_t len);
GLMD_API void glmd_set_log(glmd_log_fn fn, void *userdata);

/* ---------------------------------------------------------------------------------------------- */
/* Connection                                                                                     */

struct glmd_options {
    uint32_t size;
    uint32_t timeout_ms;     /* for connecting and shaking hands; 0: 5000 */
    const char *socket_path; /* NULL: $GLMD_SOCKET, $XDG_RUNTIME_DIR/GLMD_USER_SOCKET, GLMD_DEFAULT_SOCKET; */
    size_t socket_path_len;  /* set-id programs look at the last only */
    const char *client_name; /* shown to the administrator; at most 32 bytes are sent; NULL: none */
    size_t client_name_len;
    char *error;           /* receives one line for people when connecting fails: what, where, what */
    size_t error_bytes;    /* to do; NUL-terminated when error_bytes > 0; untouched on success */
    uint32_t entries_log2; /* submission ring; this and the next three: 0 asks for the daemon's default, */
    uint32_t records_log2; /* token ring; the daemon may grant less */
    uint32_t payload_log2; /* bytes of the arena that carries requests (large ones may go beside it) */
    uint32_t text_log2;    /* bytes of the arena that carries text back */
    uint64_t features;     /* what to ask for besides the usual: GLMD_FEATURE_NUMBERS or 0 */
};

/* Opens a connection; blocks for at most timeout_ms.  opt may be NULL and is borrowed for the call.
 * -ENOENT or -ECONNREFUSED: no daemon there; -EACCES: not allowed to use the socket. */
GLMD_API int glmd_connect(const struct glmd_options *opt, glmd_conn **ret);

/* The same over a connected SOCK_SEQPACKET socket that somebody passed to this program.  Takes fd: it
 * is closed by glmd_close(), and at once when this call fails. */
GLMD_API int glmd_connect_fd(int fd, const struct glmd_options *opt, glmd_conn **ret);

/* Cancels what is live but not kept (see GLMD_KEY_KEEP), closes every descriptor and unmaps the shared
 * memory: all pointers got from events die here.  NULL is allowed.  Always returns NULL, for `c =
 * glmd_close(c)`. */
GLMD_API glmd_conn *glmd_close(glmd_conn *c);

/* The sticky error of a dead connection, 0 while it lives.  *ret_text, if wanted, is one line that says
 * what happened; it lives as long as the connection and is "" while that lives. */
GLMD_API int glmd_get_error(glmd_conn *c, const char **ret_text);

enum glmd_state {
    GLMD_STATE_LOADING = 1, /* reads the model */
    GLMD_STATE_READY = 2,
    GLMD_STATE_DRAINING = 3, /* finishes what it has, takes nothing new */
    GLMD_STATE_FAILED = 4
};

/* What a daemon may grant */
#define GLMD_FEATURE_LOGPROBS     0x0001u
#define GLMD_FEATURE_ALTERNATIVES 0x0002u
#define GLMD_FEATURE_BULK         0x0004u /* requests larger than the arena */
#define GLMD_FEATURE_RESUME       0x0008u /* GLMD_KEY_KEEP and glmd_resume() */
#define GLMD_FEATURE_COALESCE     0x0010u
#define GLMD_FEATURE_TOOL_EVENTS  0x0020u
#define GLMD_FEATURE_TOKENIZE     0x0200u /* glmd_tokenize() and glmd_count() */
#define GLMD_FEATURE_SCHEMA       0x0400u /* GLMD_KEY_SCHEMA and GLMD_KEY_JSON_OBJECT */
#define GLMD_FEATURE_NUMBERS      0x0800u /* glmd_get_numbers(); only when asked for in the options */

/* What a connection may do and what the daemon is doing.  A copy, taken at the time of the call. */
struct glmd_info {
    uint32_t size;
    uint32_t state;         /* enum glmd_state */
    uint32_t wire;          /* protocol version in use */
    uint32_t load_permille; /* while LOADING: how much of the model is there */
    uint64_t features;      /* GLMD_FEATURE_* granted */
    uint64_t generation;    /* random per start of the daemon */
    uint64_t connection_id;
    char model[64]; /* name of the model, NUL-terminated, cut to fit */
    /* limits of this connection, 0: none stated */
    uint32_t max_live;           /* requests live at once */
    uint32_t max_context_tokens; /* prompt plus answer */
    uint32_t max_output_tokens;
    uint32_t vocab_tokens; /* token ids are below this */
    uint32_t max_messages;
    uint32_t max_tools;
    uint32_t max_stops;
    uint32_t max_alternatives;
    uint64_t max_request_bytes; /* largest request payload */
    /* the daemon */
    uint64_t heartbeat_age_ns; /* since it last showed life */
    uint64_t uptime_ns;
    uint64_t kv_tokens_total;
    uint64_t kv_tokens_free;
    uint64_t tokens_out;  /* generated since it started */
    uint32_t queued;      /* requests waiting, all connections */
    uint32_t running;     /* requests running, all connections */
    uint32_t slots_total; /* sequences it can hold at once */
    uint32_t slots_free;
    uint32_t connections;
    float prefill_tokens_per_second; /* recent mean */
    float decode_tokens_per_second;
    /* this connection */
    uint32_t live;       /* requests of this connection */
    uint64_t stalls;     /* times a stream waited for its reader */
    uint64_t bells_sent; /* wake-ups sent, and spared */
    uint64_t bells_suppressed;
    uint64_t records; /* events sent */
    /* the daemon again, since it started; 0 from one that does not count */
    uint64_t requests_accepted;
    uint64_t requests_ended; /* of the accepted; the difference is what lives */
    uint64_t safety_wakes;   /* of this connection: streams found waiting by a timer; stays 0 */
    /* all connections of this user together, and its quotas; 0 is no limit where it says so */
    uint32_t user_live;
    uint32_t user_live_max;
    uint32_t user_connections;
    uint32_t user_connections_max;
    uint32_t user_kept;         /* answers that can be resumed */
    uint32_t user_submits_max;  /* requests a second; 0: no limit */
    uint64_t user_region_bytes; /* shared memory of connections */
    uint64_t user_region_max;
    uint64_t user_bulk_bytes; /* large requests */
    uint64_t user_bulk_max;
    uint64_t user_queued_tokens; /* of prompts that wait to be read */
    uint64_t user_queued_max;    /* 0: no limit */
    uint64_t user_kv_tokens;     /* cache of running requests */
    uint64_t user_kv_max;        /* 0: no limit */
    uint64_t user_refused;       /* requests refused for want of quota */
    /* the whole daemon again, in answers that have ended */
    uint32_t budget_closes; /* reasoning closed by its budget */
    uint32_t loop_closes;   /* reasoning closed and answers ended by the loop guard */
};
GLMD_API int glmd_get_info(glmd_conn *c, struct glmd_info *ret);

/* Pools, shares and what the prefix cache found, up to a second old.  Root and the daemon's own user see all
 * users; others see their own. */
enum glmd_why {
    GLMD_WHY_NEW = 1,        /* nothing kept begins like the prompt */
    GLMD_WHY_EVICTED = 2,    /* it was kept, and had to make room */
    GLMD_WHY_OTHER_USER = 3, /* another user's begins like it */
    GLMD_WHY_DIVERGED = 4,   /* it goes another way before the next checkpoint */
    GLMD_WHY_SHORT = 5,      /* too short to be kept */
    GLMD_WHY_REFUSED = 6     /* the request wished no cache */
};

struct glmd_user_numbers {
    uint32_t uid;
    uint32_t weight; /* of its share */
    uint32_t running;
    uint32_t queued;
    uint64_t served_tokens; /* of prompts and answers, since the start */
    uint64_t lookups;       /* prompts looked up in the cache */
    uint64_t hits;          /* of them, found in part */
    uint64_t prompt_tokens; /* of those looked up */
    uint64_t cached_tokens; /* of these, found */
    uint64_t tier_tokens;   /* of these, read back from disk */
};

struct glmd_miss_numbers { /* a prompt of which less than half was found */
    uint64_t age_ns;
    uint32_t uid;
    uint32_t why; /* enum glmd_why */
    uint32_t prompt_tokens;
    uint32_t found_tokens;
    uint32_t same_tokens; /* equal to kept ones from the beginning */
    uint32_t reserved;
};

enum glmd_tier { /* the directory for kept beginnings of prompts; OFF: it could not be used */
    GLMD_TIER_NONE = 0, GLMD_TIER_ON = 1, GLMD_TIER_OFF = 2,
    GLMD_TIER_READS = 3 /* writing failed again and again and is not tried any more */
};

struct glmd_numbers {
    uint32_t size;
    uint32_t all_users; /* 0: users, counts and misses are the reader's own */
    uint32_t page_tokens;
    uint32_t pages_total; /* of the cache of running sequences and kept prefixes */
    uint32_t pages_free;
    uint32_t pages_cached; /* kept prefixes alone; given up when others need them */
    uint32_t pages_high;   /* most in use at once */
    uint32_t slots_total;  /* recurrent states */
    uint32_t slots_free;
    uint32_t slots_cached;
    uint32_t slots_high;
    uint32_t seats; /* sequences that are computed at the same time */
    uint32_t running;
    uint32_t paused;
    uint32_t queued;
    uint32_t n_users;
    uint32_t n_misses;
    uint32_t reserved;
    uint64_t cache_bytes; /* this and the next two: 0 unless all_users */
    uint64_t kept;        /* checkpoints, since the start */
    uint64_t evicted;
    uint64_t lookups; /* as in struct glmd_user_numbers */
    uint64_t hits;
    uint64_t prompt_tokens;
    uint64_t cached_tokens;
    uint64_t tier_tokens;
    uint64_t misses; /* since the start */
    struct glmd_user_numbers users[24];
    struct glmd_miss_numbers miss[10]; /* the newest first */
    uint32_t tier_state; /* enum glmd_tier; all that follows: 0 unless all_users */
    uint32_t tier_error; /* errno of the last writing there; 0: it went well */
    uint32_t tier_blocks, tier_checkpoints, tier_foreign, reserved2; /* files; states; files of other models */
    uint64_t tier_bytes, tier_max_bytes, tier_written, tier_read;    /* the last two, and those below: checkpoints */
    uint64_t tier_refused;    /* not written for want of room or for an error */
    uint64_t tier_damaged, tier_thrown_out; /* forgotten because of what was read; for better ones */
    char tier_text[320];      /* how it works, or why it does not */
};
/* -EOPNOTSUPP: GLMD_FEATURE_NUMBERS was not asked for or not granted; -EAGAIN: the daemon has none yet. */
GLMD_API int glmd_get_numbers(glmd_conn *c, struct glmd_numbers *ret);

/* ---------------------------------------------------------------------------------------------- */
/* Event loops                                                                                    */
/*                                                                                                */
/* A loop of one's own: ask glmd_prepare() before polling (unless glmd_next() just returned 0),   */
/* poll the descriptor for input, then glmd_dispatch() and glmd_next() until it returns 0.        */

/* The one descriptor to poll, for input only; the same for the life of the connection.  Never read it. */
GLMD_API int glmd_get_fd(glmd_conn *c);

/* 1: nothing is waiting and the daemon will make the descriptor readable, poll now.  0: events are
 * waiting, dispatch instead of polling.  Negative: the connection is dead and has nothing left.  Gives back
 * all earlier events, because a daemon that waits for their room could not wake the sleeper. */
GLMD_API int glmd_prepare(glmd_conn *c);

/* When the library wants to be dispatched at the latest, CLOCK_MONOTONIC nanoseconds; UINT64_MAX: never.
 * The descriptor becomes readable then by itself, so loops need this only to show or to plan. */
GLMD_API int glmd_get_timeout(glmd_conn *c, uint64_t *ret_ns);

/* Never blocks.  Gives back all earlier events (see glmd_release()), then looks at the descriptor.
 * 1: glmd_next() has something; 0: nothing now; negative: dead, and everything was delivered. */
GLMD_API int glmd_dispatch(glmd_conn *c);

/* Blocks until there is an event (1), timeout_ns passed or glmd_wakeup() was called (0), a signal handler
 * ran (-EINTR), or the connection is dead and has nothing left.  timeout_ns < 0: no limit.  Implies
 * glmd_dispatch(). */
GLMD_API int glmd_wait(glmd_conn *c, int64_t timeout_ns);

/* Makes a running or the next glmd_wait() return, and the descriptor readable until the next dispatch.
 * May be called from any thread and from a signal handler. */
GLMD_API int glmd_wakeup(glmd_conn *c);

/* ---------------------------------------------------------------------------------------------- */
/* Building a request                                                                             */
/*                                                                                                */
/* A request copies what it is given.  It is made with a connection but not tied to it.  One that */
/* ran out of memory stays so: the first -ENOMEM is repeated by every later call and by submit.   */

enum glmd_role { GLMD_ROLE_SYSTEM = 1, GLMD_ROLE_USER = 2, GLMD_ROLE_ASSISTANT = 3, GLMD_ROLE_TOOL = 4 };

GLMD_API int glmd_req_new(glmd_conn *c, glmd_req **ret);

/* Frees a request that was not submitted.  NULL is allowed.  Always returns NULL. */
GLMD_API glmd_req *glmd_req_free(glmd_req *r);

/* A whole message of one text; for GLMD_ROLE_TOOL, of one result without an id. */
GLMD_API int glmd_req_message(glmd_req *r, int role, const char *text, size_t len);

/* A message of several parts: begin, any number of parts, end. */
GLMD_API int glmd_req_begin(glmd_req *r, int role);
GLMD_API int glmd_req_part_text(glmd_req *r, const char *text, size_t len);
/* What the assistant thought before it answered; only inside an assistant message. */
GLMD_API int glmd_req_part_reasoning(glmd_req *r, const char *text, size_t len);
/* A call the assistant made: arguments are the text of one JSON object. */
GLMD_API int glmd_req_part_tool_call(glmd_req *r, const char *id, size_t id_len, const char *name,
                                     size_t name_len, const char *arguments, size_t arguments_len);
/* The answer of a tool; only inside a tool message, where it comes before any text part.  id is that of the
 * call, and may be empty. */
GLMD_API int glmd_req_part_tool_result(glmd_req *r, const char *id, size_t id_len, const char *text,
                                       size_t len);
GLMD_API int glmd_req_end(glmd_req *r);

/* A prompt of token ids, instead of messages and tools. */
GLMD_API int glmd_req_tokens(glmd_req *r, const uint32_t *ids, size_t n);

/* One tool the model may call: the text of one JSON object, as chat interfaces send it
 * ({"type":"function","function":{"name":...,"description":...,"parameters":{...}}}).  It reaches the
 * prompt as it is, so keep it the same from turn to turn. */
GLMD_API int glmd_req_tool(glmd_req *r, const char *json, size_t len);

/* Adds bias to the score of one token.  Repeatable. */
GLMD_API int glmd_req_bias(glmd_req *r, uint32_t token, double bias);

/* Keyed options.  What is not set is the model's own default.  The daemon judges the values: one out of
 * range ends the request with -EINVAL and an ERROR event that names it. */
enum glmd_key {
    /* glmd_req_set_u64 */
    GLMD_KEY_MAX_TOKENS = 1, /* tokens of the answer, reasoning included */
    GLMD_KEY_MIN_TOKENS = 2,
    GLMD_KEY_TOP_K = 3,
    GLMD_KEY_SEED = 4,               /* same seed, same prompt, same options: same tokens */
    GLMD_KEY_IGNORE_EOS = 5,         /* 0 or 1: go on to max_tokens */
    GLMD_KEY_LOGPROBS = 6,           /* 0 or 1 */
    GLMD_KEY_ALTERNATIVES = 7,       /* so many likeliest tokens beside each; implies LOGPROBS */
    GLMD_KEY_THINKING = 8,           /* 0 or 1: whether the model reasons before it answers */
    GLMD_KEY_THINKING_BUDGET = 9,    /* tokens of reasoning after which it is closed */
    GLMD_KEY_CLEAR_THINKING = 10,    /* 0 or 1: drop the reasoning of earlier turns from the prompt */
    GLMD_KEY_DEADLINE_MS = 11,       /* from receipt; the request then ends with -ETIMEDOUT */
    GLMD_KEY_SESSION = 12,           /* one number for all requests of a conversation, to reuse its prefix */
    GLMD_KEY_QUIET = 13,             /* 0 or 1: no PROGRESS events */
    GLMD_KEY_TOOL_CHOICE = 14,       /* enum glmd_tool_choice */
    GLMD_KEY_PARALLEL_CALLS = 15,    /* 0: at most one call in an answer */
    GLMD_KEY_GENERATION_PROMPT = 16, /* 0: the prompt ends after the last message as it stands */
    GLMD_KEY_KEEP = 17,              /* 0 or 1: the answer outlives the connection, see glmd_resume() */
    GLMD_KEY_LOOP_GUARD = 18,        /* 0 or 1: an answer that repeats itself is stopped */
    GLMD_KEY_BACKGROUND = 19,        /* 0 or 1: requests without it go first */
    GLMD_KEY_NO_CACHE = 20,          /* 0 or 1: reads the whole prompt, keeps nothing of it for later ones */
    GLMD_KEY_JSON_OBJECT = 21,       /* 0 or 1: the answer is one JSON object */
    /* glmd_req_set_f64 */
    GLMD_KEY_TEMPERATURE = 64, /* 0: always the likeliest token */
    GLMD_KEY_TOP_P = 65,
    GLMD_KEY_MIN_P = 66,
    GLMD_KEY_REPETITION_PENALTY = 67,
    GLMD_KEY_PRESENCE_PENALTY = 68,
    GLMD_KEY_FREQUENCY_PENALTY = 69,
    /* glmd_req_set_str */
    GLMD_KEY_STOP = 128,      /* ends the answer where this text would begin; repeatable */
    GLMD_KEY_EFFORT = 129,    /* "low", "high", "max", or another word that the daemon maps to one */
    GLMD_KEY_TOOL_NAME = 130, /* the one tool that must be called */
    GLMD_KEY_LABEL = 131,     /* who this is for; honoured only from trusted programs */
    GLMD_KEY_SCHEMA = 132     /* a JSON schema, which the answer satisfies; see glmd_req_new(3) for what of it */
};

enum glmd_tool_choice { GLMD_TOOL_CHOICE_AUTO = 0, GLMD_TOOL_CHOICE_NONE = 1, GLMD_TOOL_CHOICE_REQUIRED = 2 };

/* -EINVAL: no such key for this type of value; -ERANGE: the protocol cannot carry the value. */
GLMD_API int glmd_req_set_u64(glmd_req *r, int key, uint64_t value);
GLMD_API int glmd_req_set_f64(glmd_req *r, int key, double value);
GLMD_API int glmd_req_set_str(glmd_req *r, int key, const char *value, size_t len);

/* ---------------------------------------------------------------------------------------------- */
/* Running                                                                                        */

/* Hands a request to the daemon.  On success takes r and stores its tag, which names it in events until
 * its END event; on failure r stays the caller's and can be submitted again.
 * -ENOBUFS: the rings are full, dispatch and try again; -EBUSY: too many live requests;
 * -EMSGSIZE: larger than max_request_bytes; -EBADMSG: a message is still open; -EOPNOTSUPP: GLMD_KEY_KEEP
 * without GLMD_FEATURE_RESUME, or a schema without GLMD_FEATURE_SCHEMA. */
GLMD_API int glmd_submit(glmd_conn *c, glmd_req *r, uint64_t *ret_tag);

/* Asks for an early end.  END(-ECANCELED) still arrives, or the END that was already on its way.  A tag
 * that is not live is no error. */
GLMD_API int glmd_cancel(glmd_conn *c, uint64_t tag);

/* The same from any thread: queued, and sent by the owner's next dispatch or wait, which it wakes. */
GLMD_API int glmd_cancel_async(glmd_conn *c, uint64_t tag);

/* Goes on with an answer that was asked for with GLMD_KEY_KEEP, on another connection of the same user as a
 * rule, also after the program that asked has died.  stream_id is that of its ACCEPTED event, from_seq one
 * more than the seq of the last event that was dealt with, or 0 for all there is.  What follows under the new
 * tag is ACCEPTED, then every event from there on as if nothing had happened, and one END.  A tag that has
 * the answer now loses it: its END says -ECANCELED.  The daemon keeps the last 64 KiB of an answer, and for a
 * while only once nobody reads it or it has ended; then, and for anybody else's, ERROR and END say -ENODATA.
 * -EOPNOTSUPP: the daemon did not grant GLMD_FEATURE_RESUME; otherwise as glmd_submit(). */
GLMD_API int glmd_resume(glmd_conn *c, uint64_t stream_id, uint32_t from_seq, uint64_t *ret_tag);

/* Small services.  They take a request like glmd_submit() and are answered by events with their own tag.
 * Counting: END whose usage says the tokens of the prompt.  Tokenizing: IDS events with them all.
 * -EOPNOTSUPP: the daemon did not grant GLMD_FEATURE_TOKENIZE. */
GLMD_API int glmd_count(glmd_conn *c, glmd_req *r, uint64_t *ret_tag);
GLMD_API int glmd_tokenize(glmd_conn *c, glmd_req *r, uint64_t *ret_tag);

/* ---------------------------------------------------------------------------------------------- */
/* Events                                                                                         */

enum glmd_event_type {
    GLMD_EV_ACCEPTED = 1, /* the daemon has read the request: stream_id */
    GLMD_EV_PROGRESS = 2, /* waiting or reading the prompt: phase, done, total, cached, queue_position,
                           * wait_ms */
    GLMD_EV_TOKEN = 3,    /* one token and the text it completed, which may be empty */
    GLMD_EV_TEXT = 4,     /* text that is not one token's */
    GLMD_EV_TOOL = 5,  /* a tool call begins or ends: index, phase; name and arguments come as text between */
    GLMD_EV_END = 6,   /* the last event of its tag: status, reason, detail, usage */
    GLMD_EV_ERROR = 7, /* text says for people what is wrong with the request; END follows */
    GLMD_EV_NOTICE = 8, /* about the daemon, tag 0: reason is one of enum glmd_notice */
    GLMD_EV_IDS = 9     /* tokens of a prompt: ids, n_ids */
};

enum glmd_channel {
    GLMD_CHANNEL_CONTENT = 0,
    GLMD_CHANNEL_REASONING = 1,
    GLMD_CHANNEL_TOOL_NAME = 2,
    GLMD_CHANNEL_TOOL_ARGUMENTS = 3 /* the pieces of one call make one JSON object */
};

enum glmd_event_flag {
    GLMD_EVF_MORE = 2,     /* the same piece of text goes on in the next event of the tag */
    GLMD_EVF_FIRST = 4,    /* first token or text of the answer; on channel TOOL_NAME: of each call */
    GLMD_EVF_STEP_END = 8, /* nothing further for this tag from this step of the model */
    GLMD_EVF_DRAFTED = 32, /* the token was guessed first and verified */
    GLMD_EVF_FORCED = 64,  /* TOKEN: a rule set it, the model had no choice; END: its reasoning was closed */
    GLMD_EVF_LOOP = 128    /* END: because it repeated itself */
};

enum glmd_phase {
    GLMD_PHASE_QUEUED = 1,      /* PROGRESS: waits its turn */
    GLMD_PHASE_PREPARING = 2,   /* PROGRESS: text becomes tokens */
    GLMD_PHASE_PREFILL = 3,     /* PROGRESS: the model reads the prompt */
    GLMD_PHASE_TOOL_BEGIN = 16, /* TOOL */
    GLMD_PHASE_TOOL_END = 17,
    GLMD_PHASE_TOOL_CUT = 18 /* TOOL: the answer ended inside the call; do not run it */
};

enum glmd_reason {
    GLMD_REASON_NONE = 0,       /* never started, or the connection died: see status */
    GLMD_REASON_STOP = 1,       /* the model ended its answer */
    GLMD_REASON_STOP_TEXT = 2,  /* a stop string; detail says which, from 0 */
    GLMD_REASON_LENGTH = 3,     /* max_tokens */
    GLMD_REASON_CONTEXT = 4,    /* the context is full */
    GLMD_REASON_TOOL_CALLS = 5, /* the answer ends with calls */
    GLMD_REASON_CANCELED = 6,
    GLMD_REASON_DEADLINE = 7,
    GLMD_REASON_ERROR = 8, /* see status */
    GLMD_REASON_LOOP = 9   /* stopped for repeating itself */
};

enum glmd_notice {
    GLMD_NOTICE_STATE = 1,  /* the state changed: see glmd_get_info() */
    GLMD_NOTICE_LIMITS = 2, /* the limits changed */
    GLMD_NOTICE_MODEL = 3,  /* another model was loaded */
    GLMD_NOTICE_HANG = 256, /* from the library: the daemon has shown no life for some seconds */
    GLMD_NOTICE_ALIVE = 257 /* and is back */
};

/* token of an event that is not about one token */
#define GLMD_NO_TOKEN 0xffffffffu

struct glmd_alt {
    uint32_t token;
    float logprob;
};

struct glmd_usage {
    uint32_t size;
    uint32_t prompt_tokens;
    uint32_t cached_tokens;     /* of the prompt, found ready */
    uint32_t completion_tokens; /* reasoning included */
    uint32_t reasoning_tokens;
    uint32_t drafted_tokens;
    uint32_t accepted_tokens; /* of the drafted */
    uint32_t reserved;
    uint64_t queued_ns;
    uint64_t prefill_ns;
    uint64_t decode_ns;
    uint64_t longest_gap_ns; /* between two tokens */
    uint32_t tier_tokens;    /* of the cached ones, read back from disk */
    uint32_t reserved2;
};

/* Filled by glmd_next(); fields that do not belong to the type are 0, NULL or NaN, and token is
 * GLMD_NO_TOKEN.  text, alts, ids and usage point into memory of the connection.  They are valid while
 * further events are taken, until glmd_next() returns 0 or glmd_release(), glmd_prepare(), glmd_dispatch(),
 * glmd_wait(), glmd_complete() or glmd_close() is called. */
struct glmd_event {
    uint32_t size;
    uint32_t type;    /* enum glmd_event_type; ignore types you do not know */
    uint32_t channel; /* enum glmd_channel */
    uint32_t flags;   /* enum glmd_event_flag, or-ed */
    uint64_t tag;
    uint32_t seq;     /* the daemon's record number for this answer, rising */
    uint32_t token;   /* TOKEN; END: the token that ended the answer */
    const char *text; /* UTF-8, never NULL, no NUL at its end */
    size_t text_len;
    const struct glmd_alt *alts; /* best first */
    const uint32_t *ids;
    uint32_t n_alts;
    uint32_t n_ids;
    float logprob;         /* NaN when not asked for */
    int32_t status;        /* END, ERROR: 0 or negative errno */
    uint64_t t_sampled_ns; /* CLOCK_MONOTONIC when the daemon had the token, or when the event happened */
    uint32_t reason;       /* END: enum glmd_reason; NOTICE: enum glmd_notice */
    uint32_t detail;
    uint32_t phase;                 /* PROGRESS, TOOL: enum glmd_phase */
    uint32_t index;                 /* TOOL: which call of this answer, from 0 */
    uint32_t done;                  /* PROGRESS: prompt tokens read ... */
    uint32_t total;                 /* ... of so many, */
    uint32_t cached;                /* so many of them found ready */
    uint32_t queue_position;        /* PROGRESS: requests in front */
    const struct glmd_usage *usage; /* END; NULL when the request was refused */
    uint64_t stream_id;             /* ACCEPTED: for glmd_resume(); 0: the answer is not kept */
    uint32_t wait_ms;               /* PROGRESS, queued: until it will probably begin; 0: not known */
    uint32_t reserved;              /* 0 */
};

/* 1 and one event.  0: nothing now; earlier events were given back and it is safe to poll.  Negative: dead,
 * and everything was delivered.  Every tag gets exactly one END, from the daemon or, when that is gone, from
 * the library with the connection's error as status; events the daemon had published come before it. */
GLMD_API int glmd_next(glmd_conn *c, struct glmd_event *ret);

/* Up to n events at once into an array whose elements all have size set; returns how many.  Only the return
 * value 0 says that it is safe to poll. */
GLMD_API int glmd_next_n(glmd_conn *c, struct glmd_event *ret, size_t n);

/* Gives the memory of all events got so far back to the daemon.  Implied as said above; call it yourself in
 * long runs of glmd_next() so that the daemon need not wait for room. */
GLMD_API void glmd_release(glmd_conn *c);

/* Fewer wake-ups for screens and loggers: while tokens flow, the descriptor becomes readable after `tokens`
 * records or `usec` microseconds, whichever is first.  First tokens and ends are never delayed.
 * tokens 0 or 1 turns it off.  -EOPNOTSUPP: this daemon does not do it. */
GLMD_API int glmd_set_coalesce(glmd_conn *c, uint32_t tokens, uint32_t usec);

/* ---------------------------------------------------------------------------------------------- */
/* One call for scripts                                                                           */

/* Submits r, which it takes on success and on failure, blocks until its END and returns the content of
 * the answer with a NUL behind it, to be freed with glmd_free().  -EBUSY when the connection has other
 * live requests, because their events would be lost.  Returns the END's status when that is negative;
 * -EINTR after a signal, and then the request was cancelled first.  ret_len and ret_usage may be NULL;
 * ret_usage->size must be set. */
GLMD_API int glmd_complete(glmd_conn *c, glmd_req *r, char **ret_text, size_t *ret_len,
                           struct glmd_usage *ret_usage);
GLMD_API void glmd_free(void *p);

#ifdef __cplusplus
}
#endif

#endif
