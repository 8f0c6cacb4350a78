// The benchmarks behind `thinpipe bench NAME`. Each prints a small table and, with `json`, one JSON object on the last
// line.
#pragma once

#include <cstdint>
#include <string>

namespace thinpipe {

struct BenchTableOptions {
  int64_t d = 512;
  int64_t rank = 32;
  int64_t blocks = 2;      // in the stage
  int64_t sequences = 16;  // B
  int64_t length = 256;    // T
  int64_t rounds = 5;
  int threads = 1;
};
// Tokens/s, forward and backward, of one middle stage on tokens of the default corpus: subspace with the anchor table,
// subspace in the direct form, and dense.
void bench_table(const BenchTableOptions& options, bool json);

struct BenchEngineOptions {
  int64_t rounds = 3;              // the least time of these counts
  std::string python = "/usr/bin/python3";  // one with PyTorch, to compare with
  bool torch2 = false;             // compare with PyTorch 2.6 in a Debian 13 folder instead (bench/debian13.h)
  bool quick = false;              // one tiny model
  std::string only;                // parts whose names contain this: "d512 L8 T256", "muon_share_large"; empty: all
};
// Tokens/s of whole models on 1 and 2 threads, against PyTorch and against the products alone.
void bench_engine(const BenchEngineOptions& options, bool json);

struct BenchWanOptions {
  std::string program;  // path of thinpipe, which runs the stages
  int64_t d = 256;
  int64_t rank = 12;
  int64_t blocks = 4;
  int64_t sequences = 4;      // B
  int64_t length = 256;       // T
  int64_t microbatches = 16;  // M
  int64_t steps = 4;          // measured steps at unlimited rate; slow dense runs measure one
};
// Tokens/s of dense fp32, dense bf16 and subspace pipelines (two stages, one thread each, processes over gRPC): without
// a limit on the links, at the rate where dense fp32 falls to about 1/16, and at that rate with 50 ms of delay.
void bench_wan(const BenchWanOptions& options, bool json);

struct BenchDataOptions {
  std::string program;  // path of thinpipe
  uint64_t bytes = 1'000'000'000;
};
// Prepares this much made-up text in a child process: seconds, MB/s, peak resident memory, tokens.
void bench_data(const BenchDataOptions& options, bool json);

struct BenchTrustOptions {
  std::string program;  // path of thinpipe
  int64_t tries = 20;   // freezes of the coordinator
  int64_t seconds = 4;  // of each measurement of the speed
  bool members = true;  // also bad members
};
// What strangers and members can do to a run that others have joined: memory, processor time and speed under floods (a
// flood and a pause, three times; the median counts), how soon a frozen
// worker is noticed, what a frozen coordinator loses, and how many bad members end the run.
void bench_trust(const BenchTrustOptions& options, bool json);

struct BenchDashboardOptions {
  std::string program;       // path of thinpipe
  int64_t rounds = 3;        // of which the median counts
  double seconds = 10;       // of each measurement
  int64_t steps = 1'000'000; // of the made-up long run
};
// How much slower a run gets when it is watched, and how soon the dashboard answers about a long run.
void bench_dashboard(const BenchDashboardOptions& options, bool json);

struct BenchSimOptions {
  int64_t seeds = 1000;
  int64_t from = 1;  // the first seed
};
// Plays simulated runs in which everything goes wrong (tests/sim): seeds per minute on one core, and how many failed.
void bench_sim(const BenchSimOptions& options, bool json);

// Seconds from `thinpipe join` to the newcomer's first step, in the default run.
void bench_join(const std::string& program, bool json);

}  // namespace thinpipe
