// The experiments of kExperiments (lab/lab.h). Private to this folder.
#pragma once

#include "lab/lab.h"

namespace thinpipe {

void lab_collapse(const ExperimentOptions& options);
void lab_depth(const ExperimentOptions& options);
void lab_drift(const ExperimentOptions& options);
void lab_rank(const ExperimentOptions& options);
void lab_codecs(const ExperimentOptions& options);
void lab_grassmann(const ExperimentOptions& options);
void lab_overhead(const ExperimentOptions& options);
void lab_bandwidth(const ExperimentOptions& options);

}  // namespace thinpipe
