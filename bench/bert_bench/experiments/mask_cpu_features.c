/* Preload library that masks CPU features: makes CPUID fault (arch_prctl ARCH_CPUID_SET, Linux on x86-64), emulates it in
 * a SIGSEGV handler without the masked bits of leaf 7, and redirects reads of /proc/cpuinfo to a masked copy.
 *
 * Built by mask_cpu_features.py, which defines CPUINFO (path of the copy) and HIDDEN_<leaf>_<subleaf>_<register> (masks).
 *
 * Limits: the C library has already chosen its own functions (memcpy, …) by the real CPUID; programs that are linked
 * statically or started with a new environment are not masked; threads must not block SIGSEGV. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { kArchCpuidSet = 0x1012 }; /* ARCH_CPUID_SET in asm/prctl.h */

/* The definition of `name` that this library interposes. */
#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, #name))

typedef int (*SigactionFn)(int, const struct sigaction*, struct sigaction*);

/* The program's own SIGSEGV action. Ours stays installed and forwards to it. */
static struct sigaction program_action;

static long allow_cpuid(int allowed) { return syscall(SYS_arch_prctl, kArchCpuidSet, allowed); }

static void forward_to_program(int number, siginfo_t* info, void* context) {
  if (program_action.sa_flags & SA_SIGINFO) {
    program_action.sa_sigaction(number, info, context);
  } else if (program_action.sa_handler != SIG_DFL && program_action.sa_handler != SIG_IGN) {
    program_action.sa_handler(number);
  } else {
    NEXT(SigactionFn, sigaction)(number, &program_action, NULL);
    raise(number);
  }
}

static void emulate_cpuid(int number, siginfo_t* info, void* context) {
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const uint8_t* instruction = (const uint8_t*)registers[REG_RIP];
  if (info->si_code != SI_KERNEL || instruction[0] != 0x0f || instruction[1] != 0xa2) { /* not CPUID (0f a2) */
    forward_to_program(number, info, context);
    return;
  }
  const uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX];
  uint32_t a, b, c, d;
  allow_cpuid(1);
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(subleaf));
  allow_cpuid(0);
  if (leaf == 7 && subleaf == 0) {
    b &= ~HIDDEN_7_0_EBX;
    c &= ~HIDDEN_7_0_ECX;
    d &= ~HIDDEN_7_0_EDX;
  } else if (leaf == 7 && subleaf == 1) {
    a &= ~HIDDEN_7_1_EAX;
    d &= ~HIDDEN_7_1_EDX;
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2; /* continue after CPUID */
}

__attribute__((constructor(101))) static void install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = emulate_cpuid;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  NEXT(SigactionFn, sigaction)(SIGSEGV, &action, &program_action);
  if (allow_cpuid(0)) {
    fputs("cannot mask CPU features: this CPU or kernel has no CPUID faulting (cpuid_fault in /proc/cpuinfo)\n", stderr);
    _exit(125);
  }
}

int sigaction(int number, const struct sigaction* action, struct sigaction* before) {
  if (number != SIGSEGV) return NEXT(SigactionFn, sigaction)(number, action, before);
  const struct sigaction last = program_action;
  if (action) program_action = *action;
  if (before) *before = last;
  return 0;
}
sighandler_t signal(int number, sighandler_t handler) {
  if (number != SIGSEGV) return NEXT(sighandler_t (*)(int, sighandler_t), signal)(number, handler);
  const sighandler_t last = program_action.sa_handler;
  memset(&program_action, 0, sizeof program_action);
  program_action.sa_handler = handler;
  return last;
}

/* The path to open for `path`: the masked copy for /proc/cpuinfo. */
static const char* redirect(const char* path) { return path && !strcmp(path, "/proc/cpuinfo") ? CPUINFO : path; }

/* Declares `mode`, the argument of open() that follows flags with O_CREAT or O_TMPFILE. */
#define MODE(flags)                      \
  mode_t mode = 0;                       \
  if (flags & (O_CREAT | O_TMPFILE)) {   \
    va_list rest;                        \
    va_start(rest, flags);               \
    mode = va_arg(rest, mode_t);         \
    va_end(rest);                        \
  }

int open(const char* path, int flags, ...) {
  MODE(flags)
  return NEXT(int (*)(const char*, int, ...), open)(redirect(path), flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE(flags)
  return NEXT(int (*)(const char*, int, ...), open64)(redirect(path), flags, mode);
}
int openat(int dir_fd, const char* path, int flags, ...) {
  MODE(flags)
  return NEXT(int (*)(int, const char*, int, ...), openat)(dir_fd, redirect(path), flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
  return NEXT(FILE * (*)(const char*, const char*), fopen)(redirect(path), mode);
}
FILE* fopen64(const char* path, const char* mode) {
  return NEXT(FILE * (*)(const char*, const char*), fopen64)(redirect(path), mode);
}
