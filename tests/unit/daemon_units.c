/* SPDX-License-Identifier: MIT */
/* The installed text files: every directive the design relies on is there with its value, and nothing is
 * written that the file's parser would not understand (section heads, Key=Value, known udev keys). */
#include <check.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leakcheck.h"

static char text[65536];

static void slurp(const char *path) {
    FILE *f = fopen(path, "re");
    size_t n;

    ck_assert_msg(f != NULL, "%s is missing", path);
    text[0] = '\n';
    n = fread(text + 1, 1, sizeof text - 2, f);
    text[n + 1] = 0;
    fclose(f);
}

static void needs(const char *path, const char *const *lines) {
    for (; *lines; lines++) {
        char want[256];

        snprintf(want, sizeof want, "\n%s\n", *lines);
        ck_assert_msg(strstr(text, want) != NULL, "%s: no line %s", path, *lines);
    }
}

/* Every line: blank, comment, [Section] with a known name, or Key=Value with a key of letters. */
static void well_formed(const char *path) {
    static const char *const sections[] = {"[Unit]", "[Service]", "[Socket]", "[Install]"};
    bool in_section = false;
    char copy[sizeof text], *save, *line;

    strcpy(copy, text);
    for (line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        size_t i = 0;

        if (*line == '#')
            continue;
        if (*line == '[') {
            bool known = false;

            for (size_t k = 0; k < 4; k++)
                known = known || strcmp(line, sections[k]) == 0;
            ck_assert_msg(known, "%s: %s", path, line);
            in_section = true;
            continue;
        }
        while (isalnum((unsigned char)line[i]))
            i++;
        ck_assert_msg(in_section && i > 0 && line[i] == '=', "%s: %s", path, line);
    }
}

START_TEST(service) {
    static const char *const lines[] = {"Type=notify",
                                        "WatchdogSec=30s",
                                        "Restart=on-failure",
                                        "RestartPreventExitStatus=2",
                                        "User=glmd",
                                        "AmbientCapabilities=CAP_IPC_LOCK CAP_SYS_NICE",
                                        "LimitMEMLOCK=infinity",
                                        "LimitCORE=0",
                                        "NoNewPrivileges=yes",
                                        "ProtectSystem=strict",
                                        "ProtectHome=yes",
                                        "PrivateTmp=yes",
                                        "LockPersonality=yes",
                                        "RestrictNamespaces=yes",
                                        "RestrictSUIDSGID=yes",
                                        "SystemCallFilter=@system-service @aio",
                                        "DevicePolicy=closed",
                                        "RestrictAddressFamilies=AF_UNIX AF_NETLINK",
                                        "UMask=0077",
                                        "OOMPolicy=stop",
                                        "Requires=glmd.socket",
                                        "ExecStart=@sbindir@/glmd",
                                        NULL};

    slurp("units/glmd.service");
    well_formed("units/glmd.service");
    needs("units/glmd.service", lines);
}
END_TEST

START_TEST(listening_socket) {
    static const char *const lines[] = {"ListenSequentialPacket=/run/glmd/glmd.sock",
                                        "SocketGroup=glmd",
                                        "SocketMode=0660",
                                        "Accept=no",
                                        "PassCredentials=no",
                                        NULL};

    slurp("units/glmd.socket");
    well_formed("units/glmd.socket");
    needs("units/glmd.socket", lines);
}
END_TEST

START_TEST(users_and_directories) {
    static const char *const users[] = {"u glmd - \"Model daemon\" /var/lib/glmd /usr/sbin/nologin", NULL};
    static const char *const dirs[] = {"d /run/glmd 0755 glmd glmd -", NULL};

    slurp("units/glmd.sysusers");
    needs("units/glmd.sysusers", users);
    slurp("units/glmd.tmpfiles");
    needs("units/glmd.tmpfiles", dirs);
}
END_TEST

/* Comma-separated KEY{attr}OP"value" terms; balanced GOTO and LABEL. */
START_TEST(udev_rules) {
    static const char *const keys[] = {"ACTION", "SUBSYSTEM", "KERNEL", "ATTR", "GROUP",
                                       "MODE",   "TAG",       "ENV",    "GOTO", "LABEL"};
    char copy[sizeof text], *save, *line;

    slurp("udev/70-glmd.rules");
    ck_assert_ptr_nonnull(strstr(text, "GOTO=\"glmd_end\""));
    ck_assert_ptr_nonnull(strstr(text, "LABEL=\"glmd_end\""));
    ck_assert_ptr_nonnull(strstr(text, "KERNEL==\"cpu_dma_latency\", GROUP=\"glmd\", MODE=\"0660\""));
    ck_assert_ptr_nonnull(strstr(text, "SUBSYSTEM==\"infiniband_verbs\", GROUP=\"glmd\""));
    strcpy(copy, text);
    for (line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *s = line;

        if (*s == '#')
            continue;
        while (*s) {
            bool known = false;
            size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");

            for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
                known = known || (strlen(keys[k]) == n && strncmp(s, keys[k], n) == 0);
            ck_assert_msg(known, "udev: %s", s);
            s += n;
            if (*s == '{')
                s = strchr(s, '}') + 1;
            ck_assert_msg(strspn(s, "=+!:") > 0, "udev: %s", s);
            s += strspn(s, "=+!:");
            ck_assert_msg(*s == '"' && strchr(s + 1, '"') != NULL, "udev: %s", s);
            s = strchr(s + 1, '"') + 1;
            s += strspn(s, ", ");
        }
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_units");
    TCase *tc = tcase_create("units");
    SRunner *sr;
    int failed;

    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, service);
    tcase_add_test(tc, listening_socket);
    tcase_add_test(tc, users_and_directories);
    tcase_add_test(tc, udev_rules);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
