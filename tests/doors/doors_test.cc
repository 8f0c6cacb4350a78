// The doors of a running `serve`: the coordinator's port and a worker's. Callers with wrong credentials, or with right
// ones for something else, are refused. The log says why, except for callers that do not get past TLS.
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/running_program.h"
#include "net/credential_cases.h"
#include "net/grpc_link.h"
#include "net/invite.h"
#include "net/tunnel.h"
#include "run/coordinator_line.h"
#include "run/core/run_rules.h"
#include "run/join.h"

namespace thinpipe {
namespace {

using test::Arguments;
using test::Entry;
using test::RunningProgram;
using Json = nlohmann::json;

// A run that waits for its second machine, so that only the test causes events.
class Doors : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_small_run(program_);
    Arguments serve{"serve",     "small.toml",  "--listen", "127.0.0.1",
                    "--run-dir", run_.string(), "--set",    "pipeline.stages=2"};
    for (const auto& setting : settings()) serve.insert(serve.end(), {"--set", setting});
    serving_ = std::make_unique<RunningProgram>(program_, serve);
    ASSERT_TRUE(serving_->wait_for_output("to let machines join")) << serving_->err();
    const auto place = Json::parse(read_file(run_ / "coordinator.json").take());
    coordinator_ = place.at("address");
    run_id_ = place.at("run");
    invite_ = program_.run({"invite", "--uses", "5", run_.string()}).out;
    worker_ = std::make_unique<RunningProgram>(
        program_, Arguments{"join", invite_, "--listen", "127.0.0.1", "--name", "a"}, program_ / "a-data");
    ASSERT_TRUE(says("assigned: a-")) << worker_->err();
    authority_ = std::make_unique<test::SomeRun>(authority_folder(run_), run_id_);
    const auto& log = serving_->err();
    const auto begin = log.find("a-", log.find("joined: "));
    peer_ = log.substr(begin, log.find(' ', begin) - begin);
    const auto from = log.find(" from ", begin) + 6;
    worker_address_ = log.substr(from, log.find('\n', from) - from);
  }

  virtual Arguments settings() const { return {}; }

  bool says(const std::string& text) {
    return serving_->wait_until("it says " + text, [&] { return serving_->err().find(text) != std::string::npos; });
  }

  std::shared_ptr<grpc::Channel> channel(const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    expect_name(arguments, kCoordinatorName);
    return grpc::CreateCustomChannel(coordinator_, credentials, arguments);
  }
  std::unique_ptr<control::Coordinator::Stub> stub(const Identity& identity) const {
    return control::Coordinator::NewStub(channel(tls_channel(identity)));
  }
  Identity operator_() const { return load_identity(operator_folder(run_)).take(); }
  Identity member(const std::string& peer) const { return authority_->member(peer_name(peer)); }

  static Entry entry_of(const grpc::Status& status) {
    if (status.ok()) return Entry::kIn;
    EXPECT_TRUE(status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
                status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << status.error_code() << ": " << status.error_message();
    return status.error_code() == grpc::StatusCode::PERMISSION_DENIED ? Entry::kNotYou : Entry::kNoConnection;
  }

  // Tries an operator-only call at the coordinator's door.
  Entry steer(const Identity& identity) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + test::kPatience);
    control::ControlRequest request;
    request.set_what(control::ControlRequest::RESUME);
    control::ControlReply reply;
    return entry_of(stub(identity)->Control(&context, request, &reply));
  }

  // Dials the worker as the neighbour `from`.
  Entry knock(const Identity& identity, const std::string& from) const {
    const auto link = dial_link(worker_address_, link_hello(run_id_, from, 0, 1), 1 << 20, test::kPatience,
                                tls_channel(identity), peer_name(peer_));
    if (link.ok()) return Entry::kIn;
    return link.error().message.find("certificate is not of the worker") != std::string::npos ? Entry::kNotYou
                                                                                              : Entry::kNoConnection;
  }

  template <class Attempt>
  static size_t expect_entries(const std::vector<test::CredentialCase>& cases, const Attempt& attempt) {
    for (const auto& one : cases) EXPECT_EQ(attempt(one.identity), one.entry) << one.what;
    return cases.size();
  }

  test::Program program_;
  const std::filesystem::path run_ = program_ / "run";
  std::unique_ptr<RunningProgram> serving_, worker_;
  std::unique_ptr<test::SomeRun> authority_;
  std::string coordinator_, run_id_, invite_, peer_, worker_address_;
};

TEST(JoinFolder, IsNeverOutsideTheDataDirectory) {
  EXPECT_EQ(join_folder("0123abcd").filename(), "0123abcd");
  for (const char* run : {"", "..", "../x", "a/b", "/etc", "x y", "ABC"})
    EXPECT_THROW(join_folder(run), UserError) << run;
}

TEST_F(Doors, LetNobodyInWithBadCredentials) {
  size_t bad = 0, good = 0;
  const auto at_coordinator = [&](const Identity& identity) { return steer(identity); };
  const auto at_worker = [&](const Identity& identity) { return knock(identity, "wanted"); };
  EXPECT_EQ(steer(operator_()), Entry::kIn);
  // An operator's certificate of an earlier start, and any that somebody with the authority's key makes.
  for (auto& one : test::good_credentials(*authority_, kOperatorName)) {
    EXPECT_EQ(steer(one.identity), Entry::kNotYou);
    ++bad;
  }
  bad += expect_entries(test::bad_credentials(*authority_, kOperatorName), at_coordinator);
  good += expect_entries(test::good_credentials(*authority_, peer_name("wanted")), at_worker);
  bad += expect_entries(test::bad_credentials(*authority_, peer_name("wanted")), at_worker);
  EXPECT_GE(bad, 200U);
  EXPECT_GE(good, 10U);
  fmt::print("{} bad credentials were refused, {} good ones let in\n", bad, good);
  EXPECT_TRUE(says("refused: Control from ipv4:127.0.0.1:"));
  EXPECT_TRUE(says("only the run's operator may"));
  EXPECT_TRUE(says("turned somebody away: ipv4:127.0.0.1:"));
}

TEST_F(Doors, WithoutACertificate_OfferOnlyJoin) {
  const auto stranger = control::Coordinator::NewStub(channel(tls_channel_without_identity(authority_->root.pem)));
  const auto expect_denied = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    return status;
  };
  const auto ask = [&](auto method, auto request, auto reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + test::kPatience);
    expect_denied(((*stranger).*method)(&context, request, &reply));
  };
  using Stub = control::Coordinator::Stub;
  ask(&Stub::GetRun, control::RunRequest(), control::RunDescription());
  ask(&Stub::GetWindows, control::WindowsRequest(), control::Windows());
  ask(&Stub::GetStatus, control::StatusRequest(), control::RunStatus());
  ask(&Stub::Control, control::ControlRequest(), control::ControlReply());
  ask(&Stub::Invite, control::InviteRequest(), control::InviteReply());
  {
    grpc::ClientContext context;
    expect_denied(stranger->Attend(&context)->Finish());
  }
  {
    grpc::ClientContext context;
    expect_denied(stranger->GetFile(&context, {})->Finish());
  }
  {
    grpc::ClientContext context;
    control::FileTaken taken;
    expect_denied(stranger->PutFile(&context, &taken)->Finish());
  }
  const auto tunnel =
      Tunnel::open(channel(tls_channel_without_identity(authority_->root.pem)), tunnel_hello(run_id_, 0, 1, true));
  ASSERT_FALSE(tunnel.ok());
  EXPECT_NE(tunnel.error().message.find("without a certificate"), std::string::npos) << tunnel.error().message;
  // Without TLS, not even Join.
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  control::JoinReply reply;
  const auto plain = control::Coordinator::NewStub(channel(grpc::InsecureChannelCredentials()));
  EXPECT_FALSE(plain->Join(&context, {}, &reply).ok());
  EXPECT_TRUE(says("without a certificate; only Join works without one"));
}

TEST_F(Doors, GiveAMemberAccessOnlyAsItself) {
  const auto other = stub(member("other"));
  grpc::ClientContext windows_context;
  control::WindowsRequest windows;
  windows.set_run(run_id_);
  control::Windows ids;
  EXPECT_EQ(entry_of(other->GetWindows(&windows_context, windows, &ids)), Entry::kNotYou);
  control::FileRequest file;
  file.set_run(run_id_);
  file.mutable_file()->set_unit("block-000");
  grpc::ClientContext get_context;
  EXPECT_EQ(entry_of(other->GetFile(&get_context, file)->Finish()), Entry::kNotYou);
  control::FilePart part;
  *part.mutable_file() = file.file();
  part.set_run(run_id_);
  grpc::ClientContext put_context;
  control::FileTaken taken;
  const auto writer = other->PutFile(&put_context, &taken);
  writer->Write(part);
  writer->WritesDone();
  EXPECT_EQ(entry_of(writer->Finish()), Entry::kNotYou);
  EXPECT_EQ(steer(member("other")), Entry::kNotYou);
  const auto tunnel = Tunnel::open(channel(tls_channel(member("other"))), tunnel_hello(run_id_, 0, 0, true));
  EXPECT_FALSE(tunnel.ok());
  EXPECT_TRUE(says("other does not hold the first stage"));
  EXPECT_TRUE(says("other does not hold 'block-000'"));
  // A valid certificate with another's name, at both doors.
  grpc::ClientContext context;
  const auto stream = other->Attend(&context);
  control::FromWorker hello;
  hello.mutable_hello()->set_protocol(kControlProtocol);
  hello.mutable_hello()->set_peer(peer_);
  hello.mutable_hello()->set_incarnation("x");
  stream->Write(hello);
  control::ToWorker answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.refuse().reason(), fmt::format("calls itself {} with the certificate of other", peer_));
  context.TryCancel();
  (void)stream->Finish();
  EXPECT_EQ(knock(member("other"), "wanted"), Entry::kNotYou);
}

TEST_F(Doors, RefuseAKickedMember) {
  test::expect_one_line(program_.run({"kick", "b-1", run_.string()}), {"there is nobody called b-1", peer_});
  {  // It says who it is, and then it is known.
    grpc::ClientContext presence;
    const auto stream = stub(member("b-1"))->Attend(&presence);
    control::FromWorker hello;
    hello.mutable_hello()->set_protocol(kControlProtocol);
    hello.mutable_hello()->set_peer("b-1");
    hello.mutable_hello()->set_incarnation("x");
    stream->Write(hello);
    EXPECT_TRUE(says("b-1"));
    const auto kicked = program_.run({"kick", "b", run_.string()});
    EXPECT_EQ(kicked.exit_code, 0) << kicked.err;
    EXPECT_NE(kicked.out.find("b-1 was removed from the run"), std::string::npos) << kicked.out;
    EXPECT_NE(kicked.out.find("thinpipe unkick b-1"), std::string::npos) << kicked.out;
    presence.TryCancel();
    (void)stream->Finish();
  }
  grpc::ClientContext context;
  control::RunStatus status;
  EXPECT_EQ(entry_of(stub(member("b-1"))->GetStatus(&context, {}, &status)), Entry::kNotYou);
  EXPECT_TRUE(says("b-1 was removed from this run"));
  grpc::ClientContext keeping;
  control::ModelRequest wish;
  wish.set_run(run_id_);
  control::ModelFiles files;
  EXPECT_EQ(entry_of(stub(member("b-1"))->GetModel(&keeping, wish, &files)), Entry::kNotYou);
  EXPECT_FALSE(files.ready());
  // So does the worker.
  EXPECT_TRUE(worker_->wait_until("it turns b-1 away", [&] {
    const auto link = dial_link(worker_address_, link_hello(run_id_, "b-1", 0, 1), 1 << 20, test::kPatience,
                                tls_channel(member("b-1")), peer_name(peer_));
    return !link.ok() && link.error().message.find("b-1 was removed from the run") != std::string::npos;
  }));
  // Until it is pardoned.
  const auto pardoned = program_.run({"unkick", "b", run_.string()});
  EXPECT_EQ(pardoned.out, "b-1 may take part again\n") << pardoned.err;
  grpc::ClientContext again;
  EXPECT_EQ(entry_of(stub(member("b-1"))->GetStatus(&again, {}, &status)), Entry::kIn);
}

TEST_F(Doors, GiveTheModelOnlyWhenTheRunIsComplete) {
  const auto other = stub(member("other"));
  control::ModelRequest wish;
  wish.set_run(run_id_);
  for (const bool have_it : {false, true}) {
    grpc::ClientContext context;
    control::ModelFiles files;
    wish.set_have_it(have_it);
    const auto status = other->GetModel(&context, wish, &files);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
    EXPECT_NE(status.error_message().find("not complete"), std::string::npos) << status.error_message();
  }
  for (const char* name : {"config.toml", "run.sqlite", "../run/config.toml", "identity/authority.pem"}) {
    grpc::ClientContext context;
    control::FileRequest request;
    request.set_run(run_id_);
    request.mutable_file()->set_unit(name);
    request.mutable_file()->set_sha256(std::string(64, 'a'));
    const auto reader = other->GetFile(&context, request);
    control::FilePart part;
    EXPECT_FALSE(reader->Read(&part)) << name;
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION) << name;
  }
}

class DoorsOfAnUnsharedRun : public Doors {
 protected:
  Arguments settings() const override { return {"cluster.share_model=false"}; }
};

TEST_F(DoorsOfAnUnsharedRun, GiveTheModelToNoMember) {
  const auto other = stub(member("other"));
  control::ModelRequest wish;
  wish.set_run(run_id_);
  grpc::ClientContext context, download;
  control::ModelFiles files;
  EXPECT_EQ(entry_of(other->GetModel(&context, wish, &files)), Entry::kNotYou);
  control::FileRequest request;
  request.set_run(run_id_);
  request.mutable_file()->set_unit("model.safetensors");
  const auto reader = other->GetFile(&download, request);
  control::FilePart part;
  EXPECT_FALSE(reader->Read(&part));
  EXPECT_EQ(entry_of(reader->Finish()), Entry::kNotYou);
}

TEST_F(Doors, HolderThatOnlyMakesTrouble_LosesItsPlaceAndTheRunLives) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + test::kPatience);
  const auto trouble_maker = stub(member("other"));
  const auto stream = trouble_maker->Attend(&context);
  control::FromWorker said;
  said.mutable_hello()->set_protocol(kControlProtocol);
  said.mutable_hello()->set_peer("other");
  said.mutable_hello()->set_incarnation("x");
  said.mutable_hello()->add_data_addresses("127.0.0.1:1");
  stream->Write(said);
  control::ToWorker told;
  int forms = 0;
  while (stream->Read(&told) && !told.has_refuse()) {
    control::FromWorker answer;
    if (told.has_probe()) {
      answer.mutable_probed()->set_incarnation(told.probe().incarnation());
      answer.mutable_probed()->set_address(told.probe().addresses(0));
    } else if (told.has_form()) {
      ++forms;
      answer.mutable_trouble()->set_epoch(told.form().epoch());
      answer.mutable_trouble()->set_reason("no");
    } else {
      answer.mutable_heartbeat();
    }
    answer.set_revision(told.revision());
    stream->Write(answer);
  }
  EXPECT_GE(forms, 2);
  EXPECT_NE(told.refuse().reason().find("too much trouble, last: "), std::string::npos) << told.refuse().reason();
  EXPECT_GT(told.refuse().retry_after_s(), 50);
  (void)stream->Finish();
  EXPECT_EQ(steer(operator_()), Entry::kIn);
  EXPECT_TRUE(says("(other) lost its place: too much trouble"));
}

// Streams without a Hello, and uploads without a first part: four of each may be open.
TEST_F(Doors, BoundTheCallsThatAMemberKeepsOpen) {
  // Two lines: one carries eight calls at a time.
  const auto line = channel(tls_channel(member("other"))), second = channel(tls_channel(member("other")));
  for (const auto& one : {line, second}) {
    ASSERT_TRUE(one->WaitForConnected(std::chrono::system_clock::now() + test::kPatience));
  }
  const auto other = control::Coordinator::NewStub(line), uploader = control::Coordinator::NewStub(second);
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(10);
  std::vector<std::future<grpc::StatusCode>> streams, uploads;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(std::async(std::launch::async, [&] {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      return other->Attend(&context)->Finish().error_code();
    }));
    uploads.push_back(std::async(std::launch::async, [&] {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      control::FileTaken taken;
      return uploader->PutFile(&context, &taken)->Finish().error_code();
    }));
  }
  for (auto* calls : {&streams, &uploads}) {
    std::map<grpc::StatusCode, int> ends;
    for (auto& call : *calls) ++ends[call.get()];
    EXPECT_EQ(ends[grpc::StatusCode::RESOURCE_EXHAUSTED], 4);
    EXPECT_EQ(ends[grpc::StatusCode::DEADLINE_EXCEEDED], 4);
  }
  EXPECT_TRUE(says("other has 4 connections already"));
  EXPECT_TRUE(says("other has 4 uploads under way already"));
}

TEST_F(Doors, SecondJoinFromOneFolder_IsRefusedAndTheFirstStays) {
  RunningProgram second(program_, {"join", invite_, "--listen", "127.0.0.1"}, program_ / "a-data");
  const auto outcome = second.wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("another `thinpipe join` takes part in this run from here"), std::string::npos)
      << outcome.err;
  EXPECT_TRUE(worker_->running()) << worker_->err();
}

TEST_F(Doors, RefuseALargeJoinBeforeItIsHeld) {
  const auto stranger = control::Coordinator::NewStub(channel(tls_channel_without_identity(authority_->root.pem)));
  control::JoinRequest request;
  request.set_run(run_id_);
  request.set_padding(std::string(1 << 20, 'x'));
  grpc::ClientContext context;
  control::JoinReply reply;
  const auto status = stranger->Join(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

TEST_F(Doors, FloodOfStrangers_IsLimitedAndMembersGetIn) {
  const auto invite = parse_invite(invite_).take();
  const auto stranger = control::Coordinator::NewStub(channel(tls_channel_without_identity(authority_->root.pem)));
  int unknown = 0, too_many = 0;
  for (int i = 0; i < 120; ++i) {
    control::JoinRequest request;
    request.set_run(run_id_);
    request.set_token(fmt::format("a guess, number {}", i));
    grpc::ClientContext context;
    control::JoinReply reply;
    const auto status = stranger->Join(&context, request, &reply);
    EXPECT_TRUE(reply.run().config_toml().empty());
    if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) ++unknown;
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++too_many;
  }
  EXPECT_EQ(unknown + too_many, 120);
  EXPECT_GT(too_many, 20);
  EXPECT_EQ(steer(operator_()), Entry::kIn);
  EXPECT_TRUE(says("this run knows no such invite"));
}

}  // namespace
}  // namespace thinpipe
