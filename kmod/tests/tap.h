/* SPDX-License-Identifier: GPL-2.0 */
/* Test Anything Protocol in the manner of kselftest: a test is a function, a failed check ends it. */
#ifndef TAP_H
#define TAP_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#define TAP_SKIP 4 /* kselftest's exit status for "skipped" */

static jmp_buf tap_out;
static int tap_failed;

#define TEST(name) static void name(void)
#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			printf("# %s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			longjmp(tap_out, 1);                                          \
		}                                                                     \
	} while (0)
#define CHECK_EQUAL(found, expected)                                                       \
	do {                                                                               \
		long long tap_found = (long long)(found), tap_expected = (long long)(expected); \
		if (tap_found != tap_expected) {                                           \
			printf("# %s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #found, \
			       tap_found, tap_expected);                                   \
			longjmp(tap_out, 1);                                               \
		}                                                                          \
	} while (0)

struct tap_test {
	const char *name;
	void (*run)(void);
};

static inline int tap_run(const struct tap_test *tests, int count)
{
	int i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("TAP version 13\n1..%d\n", count);
	for (i = 0; i < count; i++) {
		if (setjmp(tap_out) == 0) {
			tests[i].run();
			printf("ok %d %s\n", i + 1, tests[i].name);
		} else {
			tap_failed++;
			printf("not ok %d %s\n", i + 1, tests[i].name);
		}
	}
	printf("# Totals: pass:%d fail:%d xfail:0 xpass:0 skip:0 error:0\n", count - tap_failed,
	       tap_failed);
	return tap_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define TAP_MAIN(...)                                                                 \
	int main(void)                                                                \
	{                                                                             \
		static const struct tap_test tests[] = { __VA_ARGS__ };               \
		return tap_run(tests, sizeof(tests) / sizeof(*tests));                \
	}
#define T(name) { #name, name }

#endif
