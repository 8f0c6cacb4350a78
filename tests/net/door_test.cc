// A server's door: who may stay when there are too many, and the sockets of a real one.
#include "net/door.h"

#include <arpa/inet.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "net/credential_cases.h"
#include "net/grpc_link.h"
#include "net/tls.h"
#include "proto/frame.grpc.pb.h"
#include "support/user_error.h"

namespace thinpipe {
namespace {

using Ids = std::vector<DoorBook::Id>;

DoorLimits small_limits() {
  DoorLimits limits;
  limits.connections = 6;
  limits.strangers = 4;
  limits.of_network = 3;
  limits.of_member = 2;
  limits.burst = 100;
  return limits;
}

std::string place(int host, int port) { return fmt::format("ipv4:10.0.0.{}:{}", host, port); }

struct Book : DoorBook {
  explicit Book(const DoorLimits& limits = small_limits()) : DoorBook(limits) {}
  Decision come(int id, int host) { return arrive(id, place(host, id), now += std::chrono::milliseconds(1)); }
  void prove_as(int id, int host, const std::string& member) { prove(place(host, id), member); }
  TimePoint now{};
};

TEST(DoorBook, ManyStrangersOfOneNetwork_MakeRoomForOneAnother) {
  Book book;
  for (int id = 1; id <= 3; ++id) EXPECT_TRUE(book.come(id, 1).admit && book.all().size() == static_cast<size_t>(id));
  const auto fourth = book.come(4, 1);
  EXPECT_TRUE(fourth.admit);
  EXPECT_EQ(fourth.close, Ids{1});
  EXPECT_EQ(book.all(), (Ids{2, 3, 4}));
}

TEST(DoorBook, WhenStrangersAreTooMany_TheNetworkWithMostOfThemMakesRoom) {
  Book book;
  book.come(1, 1);
  for (int id = 2; id <= 4; ++id) book.come(id, 2);
  EXPECT_EQ(book.come(5, 3).close, Ids{2});
  EXPECT_EQ(book.all(), (Ids{1, 3, 4, 5}));
}

TEST(DoorBook, MemberKeepsItsPlaceHoweverManyStrangersCome) {
  Book book;
  book.come(1, 1);
  book.prove_as(1, 1, "a");
  for (int id = 2; id < 60; ++id) book.come(id, 1);
  EXPECT_EQ(book.all().front(), 1);
  EXPECT_EQ(book.all().size(), 4U);
}

TEST(DoorBook, ConnectionsOfAMemberBeyondItsShare_CountAsAStrangers) {
  Book book;
  for (int id = 1; id <= 3; ++id) {
    book.come(id, id);
    book.prove_as(id, id, "a");
  }
  EXPECT_EQ(book.overdue(book.now + std::chrono::hours(1)), Ids{3});
}

TEST(DoorBook, WhenAllPlacesAreMembers_RefusesAStranger) {
  Book book;
  for (int id = 1; id <= 6; ++id) {
    ASSERT_TRUE(book.come(id, id).admit);
    book.prove_as(id, id, fmt::format("member {}", id));
  }
  const auto seventh = book.come(7, 7);
  EXPECT_FALSE(seventh.admit);
  EXPECT_TRUE(seventh.close.empty());
}

TEST(DoorBook, StrangerHasTwoMinutes) {
  Book book;
  book.come(1, 1);
  EXPECT_TRUE(book.overdue(book.now + std::chrono::seconds(119)).empty());
  EXPECT_EQ(book.overdue(book.now + std::chrono::seconds(121)), Ids{1});
}

TEST(DoorBook, FloodOfOneNetwork_IsRefusedAndOthersGetIn) {
  auto limits = small_limits();
  limits.burst = 10;
  limits.per_second = 1;
  Book book(limits);
  int admitted = 0;
  for (int id = 1; id <= 50; ++id) admitted += book.come(id, 1).admit ? 1 : 0;
  EXPECT_EQ(admitted, 10);
  EXPECT_TRUE(book.come(51, 2).admit);
  book.now += std::chrono::seconds(3);
  EXPECT_TRUE(book.come(52, 1).admit);
}

TEST(DoorBook, KnowsAnAddressHoweverItIsWritten) {
  Book book;
  book.arrive(1, "[2001:db8::5]:77", book.now);
  book.prove("ipv6:%5B2001:db8::5%5D:77", "a");
  book.arrive(2, "[::ffff:10.0.0.1]:78", book.now);
  book.prove("ipv4:10.0.0.1:78", "b");
  EXPECT_TRUE(book.overdue(book.now + std::chrono::hours(1)).empty());
}

TEST(DoorLimits, LeaveDescriptorsForOurOwnFiles) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t limit : {rlim_t{1024}, rlim_t{256}}) {
    const rlimit lower{std::min(limit, before.rlim_max), before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
    const auto limits = door_limits();
    EXPECT_LE(limits.connections + 192, limit);
    EXPECT_LT(limits.strangers, limits.connections);
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

// ---- sockets ----

int dial(const HostPort& place) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(place.port));
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return socket;
}

bool ends(int socket) {
  pollfd wait{socket, POLLIN, 0};
  char byte = 0;
  return ::poll(&wait, 1, 20'000) == 1 && ::recv(socket, &byte, 1, 0) <= 0;
}

TEST(Door, EndsTheOldestStrangerAndForgetsWhatTheServerHasClosed) {
  std::vector<HostPort> places{{"127.0.0.1", 0}};
  std::mutex mutex;
  std::vector<int> taken;
  {
    Door door(places, small_limits());
    ASSERT_GT(places.front().port, 0);
    door.open([&](int, int socket) {
      const std::lock_guard lock(mutex);
      taken.push_back(socket);
    });
    std::vector<int> callers;
    for (int i = 0; i < 3; ++i) callers.push_back(dial(places.front()));
    callers.push_back(dial(places.front()));
    EXPECT_TRUE(ends(callers[0]));
    // The server closes one: its place is free again, so the next caller pushes nobody out.
    while (true) {
      const std::lock_guard lock(mutex);
      if (taken.size() == 4) break;
    }
    for (const int socket : callers) ::close(socket);
  }
  EXPECT_EQ(std::set<int>(taken.begin(), taken.end()).size(), 4U);
  for (const int socket : taken) ::close(socket);
}

// The coordinator's server: TLS, and connections from a door only.
struct ServerBehindADoor {
  explicit ServerBehindADoor(const test::SomeRun& run) : door(places, small_limits()) {
    prepare_grpc();
    grpc::ServerBuilder builder;
    auto acceptor = std::shared_ptr(builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        tls_server(run.member(kCoordinatorName), false)));
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    door.open([acceptor](int listener, int descriptor) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listener;
      connection.fd = descriptor;
      acceptor->HandleNewConnection(&connection);
    });
  }
  ~ServerBehindADoor() {
    door.close();
    server->Shutdown(std::chrono::system_clock::now());
  }

  // Says who called, to the door too.
  struct Service : wire::Links::Service {
    grpc::Status Echo(grpc::ServerContext* context, const wire::EchoRequest*, wire::EchoReply*) override {
      owner->door.prove(context->peer(), caller_of(*context).names.front());
      return grpc::Status::OK;
    }
    ServerBehindADoor* owner = nullptr;
  };

  std::vector<HostPort> places{{"127.0.0.1", 0}};
  Door door;
  Service service;
  std::unique_ptr<grpc::Server> server;
};

TEST(Door, MemberBehindTls_KeepsItsConnectionWhenStrangersFloodTheDoor) {
  const test::SomeRun run;
  ServerBehindADoor behind(run);
  behind.service.owner = &behind;
  grpc::ChannelArguments arguments;
  expect_name(arguments, kCoordinatorName);
  const auto channel = grpc::CreateCustomChannel(to_string(behind.places.front()),
                                                 tls_channel(run.member("a.peer.thinpipe")), arguments);
  const auto stub = wire::Links::NewStub(channel);
  const auto call = [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    wire::EchoReply reply;
    const auto status = stub->Echo(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  call();
  std::vector<int> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(dial(behind.places.front()));
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(ends(strangers[static_cast<size_t>(i)])) << i;
  call();
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
  for (const int socket : strangers) ::close(socket);
}

TEST(Door, PlaceThatIsTaken_IsAUserErrorThatNamesIt) {
  std::vector<HostPort> places{{"127.0.0.1", 0}};
  Door door(places, small_limits());
  auto again = places;
  const auto text = test::user_error([&] { Door second(again, small_limits()); });
  EXPECT_NE(text.find(fmt::format("cannot listen on 127.0.0.1:{}", places.front().port)), std::string::npos) << text;
}

}  // namespace
}  // namespace thinpipe
