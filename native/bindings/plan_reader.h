// Reads a checked description, as Python holds it, into the core's plan.
#pragma once

#include "module.h"

namespace rig::python {

// The classes and field names of rig.program.description, looked up once.
class PlanReader {
 public:
  PlanReader(const std::vector<Ref<Image>>& images, ProgramPlan& plan, Error& err) : images_(images), plan_(plan), err_(err) {}
  // Fills plan.steps; the description must outlive the plan's building, since bytes are not copied.
  bool read_steps(nb::handle steps);

 private:
  bool read_step(nb::handle step, StepPlan& out);
  bool read_submit(nb::handle step, StepPlan& out);
  bool read_part(nb::handle part, PartPlan& out);
  bool read_launch(nb::handle part, PartPlan& out);
  bool read_data(nb::handle data, DataPlan& out);
  bool read_terms(nb::handle terms, std::vector<TermPlan>& out);
  bool read_value(nb::handle value, ValuePlan& out);
  bool read_slot(nb::handle slot, SlotPlan& out);
  bool read_refs(nb::handle refs, std::vector<RefPlan>& out);
  bool resolve(int64_t image, nb::handle name, Function& out);

  const std::vector<Ref<Image>>& images_;
  ProgramPlan& plan_;
  Error& err_;
  std::string path_;  // of the step being read
};

}  // namespace rig::python
