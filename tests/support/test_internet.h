// A small internet of network namespaces, this test's own: hosts that can be dialled, and hosts behind routers that
// translate addresses and let nobody in. All hidden hosts have the same private address, as at home. Needs root;
// why_not() says what is missing, "" when all is there. Gone when destroyed.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace thinpipe::test {

class TestInternet {
 public:
  TestInternet() {
    if (::geteuid() != 0) {
      why_not_ = "network namespaces need root";
      return;
    }
    add_namespace(core());
    run(fmt::format("ip -n {} link add net type bridge", core()));
    run(fmt::format("ip -n {} link set net up", core()));
  }
  ~TestInternet() {
    for (const auto& name : namespaces_) (void)output_of(fmt::format("ip netns delete {}", name));
  }
  TestInternet(const TestInternet&) = delete;
  TestInternet& operator=(const TestInternet&) = delete;

  const std::string& why_not() const { return why_not_; }

  struct Host {
    std::string network;  // the namespace
    std::string address;  // its own; of a hidden one nobody else's business
  };

  Host add_open_host(const std::string& name) {
    const Host host{full_name(name), next_address()};
    add_namespace(host.network);
    plug_in(host.network, host.address);
    return host;
  }

  Host add_hidden_host(const std::string& name) {
    const auto router = full_name(name + "-r");
    const Host host{full_name(name), "192.168.1.2"};
    add_namespace(router);
    add_namespace(host.network);
    plug_in(router, next_address());
    run(fmt::format("ip link add home netns {} type veth peer name home netns {}", router, host.network));
    run(fmt::format("ip -n {} address add 192.168.1.1/24 dev home", router));
    run(fmt::format("ip -n {} address add {}/24 dev home", host.network, host.address));
    for (const auto& name_of_end : {router, host.network}) {
      run(fmt::format("ip -n {} link set home up", name_of_end));
    }
    run(fmt::format("ip -n {} route add default via 192.168.1.1", host.network));
    run(fmt::format("ip netns exec {} sysctl -q -w net.ipv4.ip_forward=1", router));
    run(fmt::format(
        "ip netns exec {} nft 'add table ip nat; add chain ip nat out {{ type nat hook postrouting priority "
        "100 ; }}; add rule ip nat out oifname \"wan\" masquerade; add table ip guard; add chain ip guard in "
        "{{ type filter hook forward priority 0 ; }}; add rule ip guard in iifname \"wan\" ct state new drop'",
        router));
    return host;
  }

  // Lets anybody reach that port of a hidden host, through its router: what people do by hand. The router's address.
  std::string forward_port(const Host& host, int port) {
    const auto router = host.network + "-r";
    run(fmt::format(
        "ip netns exec {} nft 'add chain ip nat into {{ type nat hook prerouting priority -100 ; }}; add rule "
        "ip nat into iifname \"wan\" tcp dport {} dnat to {}; insert rule ip guard in iifname \"wan\" tcp dport "
        "{} accept'",
        router, port, host.address, port));
    for (const auto& [name, address] : plugged_) {
      if (name == router) return address;
    }
    return "";
  }

 private:
  static std::string full_name(const std::string& name) { return fmt::format("thinpipe-{}-{}", ::getpid(), name); }
  static std::string core() { return full_name("net"); }
  std::string next_address() { return fmt::format("10.77.0.{}", ++hosts_); }

  void add_namespace(const std::string& name) {
    (void)output_of(fmt::format("ip netns delete {}", name));  // of a test that was killed, long ago
    run(fmt::format("ip netns add {}", name));
    run(fmt::format("ip -n {} link set lo up", name));
    namespaces_.push_back(name);
  }

  void plug_in(const std::string& name, const std::string& address) {
    const auto port = fmt::format("port{}", plugged_.size());
    run(fmt::format("ip link add wan netns {} type veth peer name {} netns {}", name, port, core()));
    run(fmt::format("ip -n {} address add {}/24 dev wan", name, address));
    run(fmt::format("ip -n {} link set wan up", name));
    run(fmt::format("ip -n {} link set {} master net up", core(), port));
    plugged_.emplace_back(name, address);
  }

  void run(const std::string& command) {
    if (!why_not_.empty()) return;
    const auto [status, text] = output_of(command);
    if (status != 0) why_not_ = fmt::format("{}: {}", command, text);
  }

  static std::pair<int, std::string> output_of(const std::string& command) {
    std::string text;
    std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return {-1, "cannot start a shell"};
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
    return {::pclose(pipe), text};
  }

  std::string why_not_;
  std::vector<std::string> namespaces_;
  std::vector<std::pair<std::string, std::string>> plugged_;  // namespace, address
  int hosts_ = 0;
};

}  // namespace thinpipe::test
