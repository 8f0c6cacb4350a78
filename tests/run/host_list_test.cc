// The hosts that a person names: the file's format, and what is refused with which line.
#include "run/host_list.h"

#include <gtest/gtest.h>

namespace thinpipe {
namespace {

using HostList = std::vector<Host>;

std::string fault_of(const std::string& text) {
  const auto hosts = parse_hostfile(text, "hosts.txt");
  return hosts ? "none" : hosts.error().message;
}

TEST(Hostfile, ReadsDeepSpeedsFormWithComments) {
  const auto text =
      "# all of ours\nbox\r\n\n  user@other\tslots=4   # in the attic\n#gone slots=2\nlast.example.org slots=2";
  const HostList expected{{"box", 1}, {"user@other", 4}, {"last.example.org", 2}};
  const auto hosts = parse_hostfile(text, "hosts.txt").take();
  EXPECT_EQ(hosts, expected);
  EXPECT_EQ(slots_of(hosts), 7);
  EXPECT_EQ(to_string(hosts), "box, user@other (4), last.example.org (2)");
}

TEST(Hostfile, WrongLine_IsNamedByItsNumber) {
  EXPECT_EQ(fault_of("a\nb slot=2\n"), "hosts.txt:2: \"slot=2\" after the host; needs HOST or HOST slots=N");
  EXPECT_EQ(fault_of("a slots=2 b\n"), "hosts.txt:1: \"b\" after the host; needs HOST or HOST slots=N");
  for (const char* slots : {"", "0", "-1", "257", "2x", "99999999999999999999"}) {
    EXPECT_EQ(fault_of(std::string("\na slots=") + slots),
              std::string("hosts.txt:2: slots=") + slots + ": needs a number from 1 to 256");
  }
  EXPECT_EQ(fault_of("a\n# b\na slots=2\n"), "hosts.txt:3: a is in line 1 already; give it slots=N there");
  EXPECT_EQ(fault_of(" \n# a\n"), "hosts.txt: names no host; needs a line HOST or HOST slots=N for each");
}

TEST(Hostfile, NameThatSshWouldTakeForAnOptionOrACommand_IsRefused) {
  for (const char* name : {"-oProxyCommand=x", "a;b", "a`b`", "$(a)", "a'b", "\"a\"", "a|b", "\x01"}) {
    EXPECT_NE(fault_of(name).find("is not a host"), std::string::npos) << name << ": " << fault_of(name);
    EXPECT_FALSE(named_hosts({name})) << name;
  }
  EXPECT_TRUE(parse_hostfile(std::string(255, 'a'), "hosts.txt"));
  EXPECT_FALSE(parse_hostfile(std::string(256, 'a'), "hosts.txt"));
}

TEST(NamedHosts, NameGivenTwice_HasTwoSlots) {
  const HostList expected{{"a", 2}, {"b", 1}};
  EXPECT_EQ(named_hosts({"a", "b", "a"}).take(), expected);
}

}  // namespace
}  // namespace thinpipe
