// A stage's report as the message that carries it, and back.
#pragma once

#include "pipeline/stage_report.h"
#include "proto/control.pb.h"

namespace thinpipe {

control::Ready to_message(const StageReport& report);
StageReport from_message(const control::Ready& ready);

}  // namespace thinpipe
