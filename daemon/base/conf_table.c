/* SPDX-License-Identifier: MIT */
/* The configuration table: every key the daemon knows, its range, its default and its words. */
#include "conf_table.h"

#include "log.h"

static const struct conf_word backend_words[] = {
    {"cpu", CONF_BACKEND_CPU}, {"ref", CONF_BACKEND_REF}, {"cuda", CONF_BACKEND_CUDA}, {NULL, 0}};
static const struct conf_word cache_words[] = {
    {"f32", CONF_CACHE_F32}, {"bf16", CONF_CACHE_BF16}, {"fp8", CONF_CACHE_FP8}, {NULL, 0}};
static const struct conf_word off_on_words[] = {{"off", 0}, {"on", 1}, {NULL, 0}};
static const struct conf_word io_words[] = {
    {"auto", CONF_IO_AUTO}, {"uring", CONF_IO_URING}, {"epoll", CONF_IO_EPOLL}, {NULL, 0}};
static const struct conf_word no_yes[] = {{"no", 0}, {"yes", 1}, {NULL, 0}};
static const struct conf_word level_words[] = {{"error", LOG_LEVEL_ERROR},   {"warning", LOG_LEVEL_WARNING},
                                               {"notice", LOG_LEVEL_NOTICE}, {"info", LOG_LEVEL_INFO},
                                               {"debug", LOG_LEVEL_DEBUG},   {NULL, 0}};

#define AT(field) .off = offsetof(struct conf, field), .size = sizeof((struct conf *)0)->field
#define K         (UINT64_C(1) << 10)
#define M         (UINT64_C(1) << 20)
#define G         (UINT64_C(1) << 30)

const struct conf_row conf_rows[] = {
    {"Model", "Path", CONF_T_STRING, AT(model_path), .def = "",
     .doc = "Directory of the checkpoint, or script:FILE for a scripted model that needs no weights, or "
            "synthetic:SHAPE[,experts=FORMAT][,dense=FORMAT][,layers=N] for the shapes of glm-5.3-flash, glm-5.3 or nano "
            "with random weights, which measure a machine and mean nothing. Required here or with --model."},
    {"Model", "Backend", CONF_T_WORD, AT(backend), .def = "cpu", .words = backend_words,
     .doc = "Which kernels compute: cpu uses the vector units of the processor, cuda one NVIDIA GPU (in builds made "
            "with it), ref is the slow scalar reference."},
    {"Model", "Threads", CONF_T_U32, AT(threads), .def = "0", .min = 0, .max = 1024,
     .doc = "Compute threads. 0 takes one per processor that is online."},
    {"Model", "Ranks", CONF_T_U32, AT(ranks), .def = "1", .min = 1, .max = 8,
     .doc = "Shares the model is cut into: heads, widths of the feed-forwards and vocabulary. Each rank computes its "
            "own with its part of the threads, and their results are exchanged. Within one machine that gains "
            "nothing; it is how several will compute a model that none of them can hold."},
    {"Model", "ContextTokens", CONF_T_U32, AT(context_tokens), .def = "0", .min = 0, .max = 16777216,
     .doc = "Longest prompt plus answer of one request. 0 takes the model's own maximum, or less when "
            "memory does not suffice for it."},

    {"Model", "AllowFourBitDense", CONF_T_WORD, AT(allow_four_bit_dense), .def = "no", .words = no_yes,
     .doc = "Whether a checkpoint is served whose matrices outside of the routed experts have four bits or fewer. Such "
            "models end their answers early and make mistakes in languages other than English. no refuses them."},
    {"Model", "AllowLowPrecision", CONF_T_STRING, AT(allow_low_precision), .def = "",
     .doc = "Parts that are served in less than 16 bits if the checkpoint has them so, of embed, kv_b, indexer and "
            "kda_gates, with commas between: small parts whose errors multiply. Empty refuses such a checkpoint. Most "
            "GGUF files need all four."},

    {"Model", "Convert", CONF_T_STRING, AT(convert), .def = "",
     .doc = "Matrices that the checkpoint has in BF16 and that are made smaller while it is loaded: GROUP:FORMAT with "
            "commas between, as in shared:int8,kda_in:int8. Groups are shared, dense, mla (q_b and o), kda_in (q, k and "
            "v), kda_o and lm_head; formats are int8 and int4, a scale for every 128 inputs, and mxfp8. The bytes are "
            "those that glm-pack(1) writes. int4 also wants AllowFourBitDense. With several ranks the 128 inputs are "
            "counted in the whole matrix, of which a rank has whole groups. All other parts stay as they are."},

    {"Memory", "KeepFreeBytes", CONF_T_BYTES, AT(keep_free_bytes), .def = "1G", .min = 0, .max = 1024 * G,
     .doc = "Refuse to start when less memory than this would stay available for everything else."},
    {"Memory", "CacheFormat", CONF_T_WORD, AT(cache_format), .def = "f32", .words = cache_words,
     .doc = "How the cache of attention is stored: f32 is exact, bf16 takes half of it, fp8 about a quarter. What is "
            "rounded moves the model's answers a little. The recurrent state is always exact."},
    {"Memory", "MaxSequences", CONF_T_U32, AT(max_sequences), .def = "8", .min = 1, .max = 1024,
     .doc = "Requests that are computed at the same time. Each reserves recurrent state and cache pages at "
            "start."},
    {"Memory", "MaxRequests", CONF_T_U32, AT(max_requests), .def = "256", .min = 1, .max = 65536,
     .doc = "Requests that are accepted at the same time, running or queued, of all connections together."},

    {"Engine", "PrefillTokens", CONF_T_U32, AT(prefill_tokens), .def = "512", .min = 64, .max = 65536,
     .doc = "Tokens of a prompt that are read in one piece, a multiple of 64. While others are answered it may be "
            "less."},
    {"Engine", "TargetGapMs", CONF_T_U32, AT(target_gap_ms), .def = "200", .min = 1, .max = 10000,
     .doc = "Longest time between two tokens of an answer while prompts of others are read. Within it both sides "
            "get half of the time; a prompt gets a quarter even if that makes gaps longer."},
    {"Engine", "MaxQueued", CONF_T_U32, AT(max_queued), .def = "0", .min = 0, .max = 65536,
     .doc = "Requests that may wait beside [Memory] MaxSequences that run; further ones are refused with the time "
            "after which a place will probably be free. 0 takes as many as [Memory] MaxRequests leaves."},
    {"Engine", "BackgroundWaitSec", CONF_T_U32, AT(background_wait_sec), .def = "60", .min = 0, .max = 86400,
     .doc = "A background request that has waited for this time counts as any other until it has run for as long. 0 "
            "lets it wait as long as there are others."},

    {"Cache", "Slots", CONF_T_U32, AT(cache_slots), .def = "32", .min = 0, .max = 65536,
     .doc = "States of the model that are kept beside those of running requests: for requests that are set aside, and "
            "so that prompts which begin like an earlier one begin where that one was read. A request leaves at most "
            "four. Fewer are made when they would take more than a quarter of the memory. 0 keeps none. States of "
            "GLM-5.3 are empty: thousands of them cost next to nothing there, and what limits the cache are pages."},
    {"Cache", "MaxBytes", CONF_T_BYTES, AT(cache_bytes), .def = "0", .min = 0, .max = 1024 * G,
     .doc = "Most that kept beginnings of prompts may hold, states and pages together. 0 is no limit but what running "
            "requests leave: they come first."},
    {"Cache", "SpillDirectory", CONF_T_PATH, AT(spill_dir), .def = "",
     .doc = "A directory of the daemon's own, mode 700, where kept beginnings of prompts are written, too, so that "
            "they are read from there when memory had no room for them. Its files hold the users' tokens. Empty is "
            "none. A directory that is missing, full or in use by another daemon is said in the log, and the daemon "
            "does without it. The service may write to /var/cache/glmd."},
    {"Cache", "SpillBytes", CONF_T_BYTES, AT(spill_bytes), .def = "64G", .min = M, .max = 1024 * 1024 * G,
     .doc = "Most that the files in SpillDirectory may take, those of other models included. What saved the most "
            "tokens for its size, and was of use last, stays."},
    {"Cache", "SpillKeepFree", CONF_T_BYTES, AT(spill_keep_free), .def = "50G", .min = 0, .max = 1024 * 1024 * G,
     .doc = "Nothing is written while the file system of SpillDirectory would have less than this left."},
    {"Cache", "SpillMinTokens", CONF_T_U32, AT(spill_min_tokens), .def = "8192", .min = 64, .max = 16777216,
     .doc = "Shorter beginnings of prompts are not written: reading them anew costs little."},
    {"Cache", "SpillSurvive", CONF_T_WORD, AT(spill_survive), .def = "no", .words = no_yes,
     .doc = "Whether what was written is used by the next daemon with the same model. Everything that is kept is then "
            "written at once; otherwise what may soon have to go, and the files are removed at the end."},

    {"IPC", "Socket", CONF_T_PATH, AT(socket_path), .def = "/run/glmd/glmd.sock",
     .doc = "Path of the listening socket. Not used when the service manager passes the socket. A daemon "
            "started by an ordinary user without this key uses $XDG_RUNTIME_DIR/glmd/glmd.sock. The directory of the "
            "default, /run/glmd or that one, is made when it is missing; every other must be there."},
    {"IPC", "SocketGroup", CONF_T_STRING, AT(socket_group), .def = "",
     .doc = "Group that may connect. Empty leaves the group of the daemon."},
    {"IPC", "IOBackend", CONF_T_WORD, AT(io_backend), .def = "auto", .words = io_words,
     .doc = "Event loop: auto tries io_uring and falls back to epoll, the other words force one of them."},
    {"IPC", "MaxConnections", CONF_T_U32, AT(max_connections), .def = "64", .min = 1, .max = 4096,
     .doc = "Connections at the same time; further ones are refused with a reason."},
    {"IPC", "SubmissionRingEntries", CONF_T_U32, AT(sq_entries), .def = "256", .min = 16, .max = 4096,
     .pow2 = true,
     .doc = "Entries of a connection's submission ring, a power of two. A client that asks for "
            "more gets this."},
    {"IPC", "TokenRingRecords", CONF_T_U32, AT(tq_records), .def = "4096", .min = 64, .max = 65536,
     .pow2 = true,
     .doc = "Records of a connection's token ring, a power of two. A client that asks for more gets this."},
    {"IPC", "PayloadBytes", CONF_T_BYTES, AT(payload_bytes), .def = "1M", .min = 64 * K, .max = 64 * M,
     .pow2 = true,
     .doc = "Bytes of a connection's arena for requests, a power of two: the largest request. A "
            "client that asks for more gets this."},
    {"IPC", "TextBytes", CONF_T_BYTES, AT(text_bytes), .def = "256K", .min = 64 * K, .max = 16 * M,
     .pow2 = true,
     .doc = "Bytes of a connection's arena for text on its way to the client, a power of two. A client that "
            "asks for more gets this."},
    {"IPC", "MaxBulkBytes", CONF_T_BYTES, AT(max_bulk_bytes), .def = "64M", .min = 0, .max = G, .reload = true,
     .doc = "Largest request or picture that a client may pass in a sealed memory file of its own instead of "
            "through the arena. 0 offers no such files. New connections see a changed value."},
    {"IPC", "InlineConnections", CONF_T_U32, AT(inline_connections), .def = "8", .min = 0, .max = 4096,
     .doc = "Up to so many connections with running requests the engine publishes tokens itself, as long as that "
            "takes it little longer than waking a thread of its own, which does it otherwise."},
    {"IPC", "HandshakeTimeoutSec", CONF_T_U32, AT(handshake_timeout_sec), .def = "2", .min = 1, .max = 60,
     .reload = true, .doc = "A connection that has not said hello after this time is closed."},
    {"IPC", "StallTimeoutSec", CONF_T_U32, AT(stall_timeout_sec), .def = "300", .min = 1, .max = 86400,
     .reload = true,
     .doc = "Requests of a client that leaves its token ring full for this time are ended, so that others "
            "get their place."},
    {"IPC", "ParkTimeoutSec", CONF_T_U32, AT(park_timeout_sec), .def = "30", .min = 0, .max = 86400,
     .doc = "A request whose client leaves its token ring full for this time is set aside when others wait: its seat is "
            "theirs, and its memory when that is what they wait for. A client "
            "that takes a token now and then is treated alike: time in which the ring was full adds up, and time in "
            "which the request ran takes three times as much from it. It goes on when the client has read some tokens "
            "(16, or as many as half its ring holds); what it "
            "gave away and the cache did not keep is computed anew. Such requests of one user never take all places. 0 "
            "never does."},

    {"IPC", "KeepDisconnectedSec", CONF_T_U32, AT(keep_disconnected_sec), .def = "60", .min = 1, .max = 86400,
     .reload = true,
     .doc =
         "How long a kept answer waits for its client. One that runs goes on for this time after its client "
         "went away and is then cancelled; of one that has ended the last 64 KiB can be fetched for this "
         "time."},
    {"IPC", "MaxKeptStreams", CONF_T_U32, AT(max_kept), .def = "64", .min = 0, .max = 4096,
     .doc = "Answers of all users together that can be kept for a client that comes back, 64 KiB of memory "
            "each. "
            "0 offers it to nobody."},

    {"Quota", "MaxConnectionsPerUid", CONF_T_U32, AT(quota.connections_per_uid), .def = "32", .min = 1,
     .max = 4096, .reload = true, .doc = "Connections of one user at the same time."},
    {"Quota", "MaxRequestsPerUid", CONF_T_U32, AT(quota.requests_per_uid), .def = "128", .min = 1,
     .max = 65536, .reload = true,
     .doc = "Live requests of one user over all connections; further ones end with an error."},
    {"Quota", "MaxRequestsPerConnection", CONF_T_U32, AT(quota.requests_per_connection), .def = "64",
     .min = 1, .max = 8192, .reload = true,
     .doc = "Live requests of one connection. New connections see a changed value."},
    {"Quota", "MaxRegionBytesPerUid", CONF_T_BYTES, AT(quota.region_bytes_per_uid), .def = "256M", .min = M,
     .max = 64 * G, .reload = true, .doc = "Shared memory of all connections of one user."},
    {"Quota", "MaxKeptStreamsPerUid", CONF_T_U32, AT(quota.kept_per_uid), .def = "16", .min = 0, .max = 4096,
     .reload = true,
     .doc =
         "Kept answers of one user. A further one takes the place of the oldest that has ended; when all of "
         "them run it is answered but not kept."},
    {"Quota", "MaxBulkBytesPerUid", CONF_T_BYTES, AT(quota.bulk_bytes_per_uid), .def = "256M", .min = 0,
     .max = 64 * G, .reload = true,
     .doc = "Sealed memory files that one user has with the daemon at the same time."},
    {"Quota", "MaxQueuedPromptTokensPerUid", CONF_T_U64, AT(quota.queued_tokens_per_uid), .def = "4194304",
     .min = 0, .max = G, .reload = true, .zero_is_none = true,
     .doc = "Prompt tokens of one user's requests that wait to be read; further ones end with an error. 0 is no "
            "limit."},
    {"Quota", "MaxKVTokensPerUid", CONF_T_U64, AT(quota.kv_tokens_per_uid), .def = "0", .min = 0, .max = G,
     .reload = true, .zero_is_none = true,
     .doc = "Cache of one user's running requests in tokens, prompt and longest answer together. Further requests "
            "wait until the user's own have ended; one that needs more by itself ends with an error. A request "
            "that states no longest answer gets what the limit leaves. 0 is no limit."},
    {"Quota", "CacheGroup", CONF_T_U32, AT(quota.cache_group), .def = "0", .min = 0, .max = UINT32_MAX, .reload = true,
     .doc = "Users with the same number find what each other's prompts left in the cache, and can tell by the time it "
            "takes what others have asked. 0 shares with nobody. Meant for [Quota uid:NAME] and [Quota gid:NAME]."},
    {"Quota", "SubmitRateLimit", CONF_T_U32, AT(quota.submit_rate), .def = "10000", .min = 0, .max = 1000000,
     .reload = true, .zero_is_none = true,
     .doc = "Requests a second of one user; what was not used in the last second may come at once. Further ones "
            "end with an error. 0 is no limit."},
    {"Quota", "Weight", CONF_T_U32, AT(quota.weight), .def = "100", .min = 1, .max = 10000, .reload = true,
     .doc = "Share of one user when several have requests waiting: tokens, read and written, are given out in "
            "proportion to it."},

    {"Text", "Workers", CONF_T_U32, AT(text_workers), .def = "2", .min = 1, .max = 64,
     .doc = "Threads that turn messages into tokens."},
    {"Text", "MaxPromptBytes", CONF_T_BYTES, AT(max_prompt_bytes), .def = "64M", .min = 4 * K, .max = G,
     .reload = true, .doc = "Largest prompt after rendering."},
    {"Text", "RememberBytes", CONF_T_BYTES, AT(remember_bytes), .def = "64M", .min = 0, .max = 64 * G,
     .doc = "Memory for the answers given lately to all users. When a client sends one back as history, it is read "
            "as the model wrote it, so that what was computed for it can be used again; an answer that was edited is "
            "read as it comes. 0 remembers nothing."},
    {"Text", "RememberBytesPerUid", CONF_T_BYTES, AT(remember_bytes_per_uid), .def = "16M", .min = 64 * K,
     .max = 64 * G,
     .doc = "The same for one user; the answers that were not sent back for the longest time go first. No user's "
            "answers are ever looked at for another."},
    {"Text", "ThinkingBudget", CONF_T_U32, AT(thinking_budget), .def = "0", .min = 0, .max = 16777216,
     .zero_is_none = true,
     .doc = "Reasoning tokens after which the reasoning of an answer is closed, for requests that state none. "
            "0 is no limit. A quarter of the longest answer, at most 1024 tokens, is always kept for what follows "
            "the reasoning."},
    {"Text", "ThinkingCloseText", CONF_T_STRING, AT(thinking_close), .def = "",
     .doc = "A sentence in the model's own voice that ends reasoning that is closed for its budget or by the loop "
            "guard, on a line of its own. Empty: a line break and no words."},
    {"Text", "LoopGuard", CONF_T_WORD, AT(loop_guard), .def = "off", .words = off_on_words,
     .doc = "Whether answers that repeat themselves are stopped, for requests that do not say: when 256 tokens are one "
            "cycle of at most 16, or half of them one token, reasoning is closed and an answer ended."},

    {"Service", "DrainTimeoutSec", CONF_T_U32, AT(drain_timeout_sec), .def = "30", .min = 0, .max = 86400,
     .reload = true, .doc = "How long running requests may go on after SIGTERM before they are ended."},
    {"Service", "LogLevel", CONF_T_WORD, AT(log_level), .def = "info", .words = level_words, .reload = true,
     .doc = "Least urgent lines that are logged. No level logs prompts or answers."},
};

const size_t conf_n_rows = sizeof conf_rows / sizeof conf_rows[0];

_Static_assert(sizeof conf_rows / sizeof conf_rows[0] <= CONF_MAX_KEYS,
               "origin[] of struct conf is too short");
