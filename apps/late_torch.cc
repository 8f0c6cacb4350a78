// The small program's version of the commands that need libtorch: main() hands over to the full program, which has the
// same command line. docs/design/0010-late-libtorch.md says why there are two.
#include "bench/bench.h"
#include "commands.h"
#include "lab/lab.h"

namespace thinpipe {

void train(const TrainArguments&) { throw NeedsTorch(); }
void init(const InitArguments&) { throw NeedsTorch(); }
void plan(const PlanArguments&) { throw NeedsTorch(); }
void serve(const ServeArguments&) { throw NeedsTorch(); }
void work(const WorkArguments&) { throw NeedsTorch(); }
void sample(const std::string&, int64_t) { throw NeedsTorch(); }
void join(const JoinArguments&) { throw NeedsTorch(); }
void doctor(const std::string&, const std::string&) { throw NeedsTorch(); }
void eval(const EvalArguments&) { throw NeedsTorch(); }
void generate(const GenerateArguments&) { throw NeedsTorch(); }
void export_model(const ExportArguments&) { throw NeedsTorch(); }
void import_model(const ImportArguments&) { throw NeedsTorch(); }
void lab_exactness(bool) { throw NeedsTorch(); }
void lab_default(const LabDefaultOptions&) { throw NeedsTorch(); }
void lab_speedrun(const SpeedrunOptions&) { throw NeedsTorch(); }
void compare(const CompareOptions&) { throw NeedsTorch(); }
void lab_experiment(const std::string&, const ExperimentOptions&) { throw NeedsTorch(); }
void bench_engine(const BenchEngineOptions&, bool) { throw NeedsTorch(); }
void bench_table(const BenchTableOptions&, bool) { throw NeedsTorch(); }
void bench_wan(const BenchWanOptions&, bool) { throw NeedsTorch(); }
void bench_trust(const BenchTrustOptions&, bool) { throw NeedsTorch(); }
void bench_dashboard(const BenchDashboardOptions&, bool) { throw NeedsTorch(); }
void bench_sim(const BenchSimOptions&, bool) { throw NeedsTorch(); }
void bench_join(const std::string&, bool) { throw NeedsTorch(); }
void bench_data(const BenchDataOptions&, bool) { throw NeedsTorch(); }

}  // namespace thinpipe
