// A fake libnvrtc.so: machine code is the source behind a line that names the architecture.
//
//   FAKE_NVRTC    its version, 13000 for 13.0
//
// Source with the word `mistake` does not compile.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_OPTION = 5, COMPILATION = 6 };

struct program {
  char *source, *code;
  const char* log;
};

static int compiled;
int fake_compiled(void) { return compiled; }

int nvrtcVersion(int* major, int* minor) {
  const char* version = getenv("FAKE_NVRTC");
  int number = version ? atoi(version) : 13000;
  *major = number / 1000;
  *minor = number % 1000 / 10;
  return OK;
}

int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return OK;
}

int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 80;
  architectures[1] = 90;
  return OK;
}

int nvrtcCreateProgram(struct program** program, const char* source, const char* name, int headers, const char** texts,
                       const char** names) {
  (void)name, (void)headers, (void)texts, (void)names;
  *program = calloc(1, sizeof **program);
  (*program)->source = strdup(source);
  (*program)->log = "";
  return OK;
}

int nvrtcCompileProgram(struct program* program, int count, const char** options) {
  const char* architecture = "--gpu-architecture=";
  if (count < 1 || strncmp(options[0], architecture, strlen(architecture))) return INVALID_OPTION;
  ++compiled;
  if (strstr(program->source, "mistake")) {
    program->log = "kernels.cu(1): error: a mistake\n";
    return COMPILATION;
  }
  return asprintf(&program->code, "code for %s\n%s", options[0] + strlen(architecture), program->source) < 0;
}

int nvrtcDestroyProgram(struct program** program) {
  free((*program)->source);
  free((*program)->code);
  free(*program);
  *program = NULL;
  return OK;
}

static int write_text(const char* text, char* to) {
  strcpy(to, text);
  return OK;
}

static int size_of_text(const char* text, size_t* bytes) {
  *bytes = strlen(text) + 1;
  return OK;
}

int nvrtcGetProgramLogSize(struct program* program, size_t* bytes) { return size_of_text(program->log, bytes); }
int nvrtcGetProgramLog(struct program* program, char* log) { return write_text(program->log, log); }
int nvrtcGetCUBINSize(struct program* program, size_t* bytes) { return size_of_text(program->code, bytes); }
int nvrtcGetCUBIN(struct program* program, char* code) { return write_text(program->code, code); }
