// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/hash_store.h>
#include <cohort/log.h>
#include <cohort/prefix_store.h>
#include <cohort/rendezvous.h>
#include <cohort/tcp_store.h>

#include <future>

#include "store/socket.h"
#include "support/expect_error.h"
#include "support/log_capture.h"
#include "support/ranks.h"
#include "support/temporary.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string, std::less<>>;

/// A port that was free a moment ago.
std::uint16_t free_port() {
  const auto socket = listen_on(Endpoint::tcp("127.0.0.1", 0));
  return bound_endpoint(socket.get()).port;
}

Variables by_hand(int rank, int size, std::uint16_t port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

RendezvousOptions in(const Variables& variables, std::chrono::milliseconds timeout = 20s) {
  return {.timeout = timeout, .env = Env::from(variables)};
}

/// Everyone writes, everyone reads everyone.
void exchange(Store& store, int rank, int size) {
  store.set("rank" + std::to_string(rank), std::to_string(rank * rank));
  for (int peer = 0; peer < size; ++peer) {
    EXPECT_EQ(store.get("rank" + std::to_string(peer), 20s), std::to_string(peer * peer));
  }
}

TEST(RendezvousTest, EnvAcrossThreads) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    const auto port = free_port();
    as_threads(size, [&](int rank) {
      const auto [store, found_rank, found_size] = rendezvous("env://", in(by_hand(rank, size, port)));
      EXPECT_EQ(found_rank, rank);
      EXPECT_EQ(found_size, size);
      exchange(*store, rank, size);
    });
  }
}

TEST(RendezvousTest, EnvAcrossProcesses) {
  const auto port = free_port();
  as_processes(4, [&](int rank) {
    const auto result = rendezvous("env://", in(by_hand(rank, 4, port)));
    exchange(*result.store, rank, 4);
    // These children leave without their exit handlers, so rank 0 waits for the others here.
    result.store->add("done", 1);
    while (rank == 0 && result.store->get("done") != "4") {
    }
    return 0;
  });
}

TEST(RendezvousTest, QueryStandsInForVariables) {
  const auto port = free_port();
  as_threads(2, [&](int rank) {
    const auto options = in({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}});
    const auto result = rendezvous("env://?rank=" + std::to_string(rank) + "&world_size=2", options);
    EXPECT_EQ(result.rank, rank);
    EXPECT_EQ(result.size, 2);
  });
}

TEST(RendezvousTest, EachVariableIsMissed) {
  const auto complete = by_hand(0, 1, 4000);
  for (const auto& [name, value] : complete) {
    auto without = complete;
    without.erase(name);
    EXPECT_ERROR(ValueError, rendezvous("env://", in(without)), name);
    without[name] = "";
    EXPECT_ERROR(ValueError, rendezvous("env://", in(without)), name);
  }
  EXPECT_ERROR(ValueError, rendezvous("env://?ranks=1", in(complete)), "unknown parameter \"ranks\"");
}

TEST(RendezvousTest, AProcessThatNobodyLaunchedIsAWorldOfOne) {
  const auto level = log_level();
  set_log_level(LogLevel::info);
  LogCapture capture;
  const auto first = rendezvous("env://", in({}));
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(first.size, 1);
  first.store->set("key", "value");
  EXPECT_EQ(first.store->get("key"), "value");
  const auto second = rendezvous("env://", in({}));
  EXPECT_FALSE(second.store->check({"key"})) << "each rendezvous has keys of its own";
  EXPECT_THAT(capture.text(), ::testing::HasSubstr("no launcher started this process, so it is rank 0 of 1"));
  set_log_level(level);
}

TEST(RendezvousTest, ABatchScriptWithoutSrunIsAWorldOfOneAndWarned) {
  LogCapture capture;
  const auto alone = rendezvous("env://", in({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));
  EXPECT_EQ(alone.size, 1);
  EXPECT_THAT(capture.text(), ::testing::HasSubstr("SLURM_NTASKS=8"));
}

TEST(RendezvousTest, HalfOfWhatALauncherSetsIsAnErrorThatNamesTheRest) {
  for (const auto* const variable :
       {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "COHORT_STORE"}) {
    const auto text = message_of<ValueError>([&] { rendezvous("env://", in({{variable, "1"}})); });
    EXPECT_THAT(text, ::testing::AllOf(::testing::HasSubstr(variable), ::testing::HasSubstr("RANK is missing"),
                                       ::testing::HasSubstr("cohort run")));
  }
  EXPECT_ERROR(ValueError, rendezvous("env://", in({{"RANK", "0"}})), "WORLD_SIZE is missing");
  EXPECT_ERROR(ValueError, rendezvous("env://", in({{"WORLD_SIZE", "2"}})), "RANK is missing");
  EXPECT_ERROR(ValueError, rendezvous("env://", in({{"RANK", "0"}, {"WORLD_SIZE", "2"}})), "MASTER_ADDR is missing");
}

TEST(RendezvousTest, Tcp) {
  const auto port = std::to_string(free_port());
  as_threads(3, [&](int rank) {
    const auto result =
        rendezvous("tcp://127.0.0.1:" + port + "?rank=" + std::to_string(rank) + "&world_size=3", in({}));
    exchange(*result.store, rank, 3);
  });
  as_threads(3, [&](int rank) {
    const auto result =
        rendezvous("tcp://127.0.0.1:" + port, {.rank = rank, .size = 3, .timeout = 20s, .env = Env::from({})});
    exchange(*result.store, rank, 3);
  });
}

TEST(RendezvousTest, TcpMissingParts) {
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1?rank=0&world_size=1", in({})), "port number is missing");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:1?world_size=1", in({})), "rank is missing");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:1?rank=0", in({})), "world size is missing");
  EXPECT_ERROR(ValueError, rendezvous("tcp://:1?rank=0&world_size=1", in({})), "host is missing");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:65536?rank=0&world_size=1", in({})), "0 to 65535");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:-1?rank=0&world_size=1", in({})), "0 to 65535");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:0?rank=0&world_size=2", in({})), "port 0");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:1?rank=2&world_size=2", in({})), "from 0 to size - 1");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:1?rank=0&world_size=0", in({})), "at least one");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:1?rank=x&world_size=1", in({})), "not a number");
  EXPECT_ERROR(ValueError, rendezvous("tcp://10.9.9.9:1?rank=0&world_size=1", in({})), "secret");
}

TEST(RendezvousTest, AnUnresolvableHostIsANetworkTimeout) {
  const auto took = time_of([] {
    EXPECT_ERROR(TimeoutError,
                 rendezvous("tcp://no-such-host.invalid:1?rank=1&world_size=2", in({{"COHORT_INSECURE", "1"}}, 300ms)),
                 "no-such-host.invalid");
  });
  EXPECT_LT(took, 10s);
}

TEST(RendezvousTest, File) {
  const TemporaryFolder folder;
  const auto url = "file://" + (folder / "job");
  as_processes(3, [&](int rank) {
    const auto result = rendezvous(url + "?rank=" + std::to_string(rank) + "&world_size=3", in({}));
    exchange(*result.store, rank, 3);
    return 0;
  });
  EXPECT_ERROR(ValueError, rendezvous("file://?rank=0&world_size=1", in({})), "path is missing");
  EXPECT_ERROR(ValueError, rendezvous("file://tmp/x?rank=0&world_size=1", in({})), "three slashes");
  EXPECT_ERROR(ValueError, rendezvous("file:///tmp/x?world_size=1", in({})), "rank is missing");
  EXPECT_ERROR(ValueError, rendezvous("file:///tmp/x?rank=0", in({})), "world size is missing");
}

TEST(RendezvousTest, CustomSchemes) {
  const auto shared = std::make_shared<HashStore>();
  register_rendezvous_handler("mine", [&](const RendezvousRequest& request) -> RendezvousResult {
    EXPECT_EQ(request.url, "mine://anything");
    EXPECT_GT(request.timeout, 0ms);
    return {shared, request.rank.value(), request.size.value()};
  });
  as_threads(2, [](int rank) {
    const auto result = rendezvous("mine://anything", {.rank = rank, .size = 2, .timeout = 20s, .env = Env::from({})});
    exchange(*result.store, rank, 2);
  });
  EXPECT_ERROR(Error, register_rendezvous_handler("mine", {}), "registered already");
  EXPECT_ERROR(Error, register_rendezvous_handler("tcp", {}), "registered already");
  EXPECT_ERROR(Error, rendezvous("consul://x", in({})), "unknown rendezvous scheme consul://");
  EXPECT_ERROR(ValueError, rendezvous("nonsense", in({})), "not a URL");
}

TEST(RendezvousTest, ARankGivenTwice) {
  EXPECT_ERROR(AssertionError, rendezvous("tcp://127.0.0.1:1?rank=0", {.rank = 0, .size = 1, .env = Env::from({})}),
               "rank is given in the URL");
  EXPECT_ERROR(AssertionError,
               rendezvous("tcp://127.0.0.1:1?world_size=1", {.rank = 0, .size = 1, .env = Env::from({})}),
               "world_size is given in the URL");
}

TEST(RendezvousTest, TwoInOneJobNeverSeeEachOthersKeys) {
  const auto port = free_port();
  as_threads(2, [&](int rank) {
    const auto first = rendezvous("env://", in(by_hand(rank, 2, port)));
    const auto second = rendezvous("env://", in(by_hand(rank, 2, port)));
    first.store->set("k" + std::to_string(rank), "first");
    second.store->set("k" + std::to_string(rank), "second");
    EXPECT_EQ(first.store->get("k" + std::to_string(1 - rank)), "first");
    EXPECT_EQ(second.store->get("k" + std::to_string(1 - rank)), "second");
  });
}

TEST(RendezvousTest, TheSecondOneAlsoWaitsForAllRanks) {
  const auto port = free_port();
  as_threads(2, [&](int rank) {
    const auto first = rendezvous("env://", in(by_hand(rank, 2, port)));
    if (rank == 0) {
      EXPECT_ERROR(StoreTimeoutError, rendezvous("env://", in(by_hand(0, 2, port), 300ms)), "missing: 1");
      first.store->set("tried", "");
    } else {
      first.store->wait({"tried"}, 20s);
    }
  });
}

TEST(RendezvousTest, OneAfterTheOther) {
  // A rank that is ahead comes back to the server while the others still leave it.
  const auto port = free_port();
  as_threads(3, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      const auto result = rendezvous("env://", in(by_hand(rank, 3, port)));
      exchange(*result.store, rank, 3);
    }
  });
}

TEST(RendezvousTest, ConcurrentOnesTakeAName) {
  const auto port = free_port();
  as_threads(2, [&](int rank) {
    std::vector<std::future<void>> both;
    // In another order on each rank.
    for (const std::string name : rank == 0 ? std::vector{"a", "b"} : std::vector{"b", "a"}) {
      both.push_back(std::async(std::launch::async, [&, name] {
        auto options = in(by_hand(rank, 2, port));
        options.name = name;
        const auto result = rendezvous("env://", options);
        result.store->set(std::to_string(rank), name);
        EXPECT_EQ(result.store->get(std::to_string(1 - rank)), name);
      }));
    }
    for (auto& one : both) one.get();
  });
}

TEST(RendezvousTest, MissingRanksAreNamedWithinTheTimeout) {
  const auto port = free_port();
  const auto took = time_of([&] {
    EXPECT_ERROR(StoreTimeoutError, rendezvous("env://", in(by_hand(0, 4, port), 300ms)),
                 "1 of 4 ranks arrived; missing: 1, 2, 3");
  });
  EXPECT_LT(took, 5s);
}

TEST(RendezvousTest, ARestartedJobSeesNothingOfTheOldOne) {
  TcpStore server({.endpoint = Endpoint::tcp("127.0.0.1", 0), .is_host = true});
  for (int attempt = 0; attempt < 2; ++attempt) {
    as_threads(2, [&](int rank) {
      auto variables = by_hand(rank, 2, 1);
      variables["COHORT_STORE"] = to_string(server.endpoint());
      variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(attempt);
      const auto result = rendezvous("env://", in(variables));
      EXPECT_FALSE(result.store->check({"left over"}));
      StorePtr inner = std::dynamic_pointer_cast<PrefixStore>(result.store)->underlying_non_prefix_store();
      inner->add("connections", 1);
      while (inner->get("connections") != std::to_string(2 * (attempt + 1))) {
      }
      result.store->set("left over", "");
    });
  }
}

TEST(RendezvousTest, LeavesNothingInTheStore) {
  TcpStore server({.endpoint = Endpoint::tcp("127.0.0.1", 0), .is_host = true});
  const auto meet = [&] {
    as_threads(2, [&](int rank) {
      auto variables = by_hand(rank, 2, 1);
      variables["COHORT_STORE"] = to_string(server.endpoint());
      rendezvous("env://", in(variables));
    });
    return server.num_keys();
  };
  const auto once = meet();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(meet(), once);
}

TEST(RendezvousTest, RanksThatDisagreeOnTheSizeAreTold) {
  const auto port = free_port();
  std::atomic<int> told{0};
  as_threads(2, [&](int rank) {
    try {
      rendezvous("env://", in(by_hand(rank, rank == 0 ? 2 : 3, port), 1s));
    } catch (const ValueError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("another was told"));
      ++told;
    } catch (const StoreTimeoutError&) {
    }
  });
  EXPECT_EQ(told, 1);
}

TEST(RendezvousTest, ASecretGuardsTheStore) {
  const TemporaryFolder folder;
  const auto secret = folder / "secret";
  Secret::generate().write_new(secret);
  const auto port = free_port();
  as_threads(2, [&](int rank) {
    const auto result =
        rendezvous("tcp://127.0.0.1:" + std::to_string(port),
                   {.rank = rank, .size = 2, .timeout = 20s, .env = Env::from({{"COHORT_SECRET_FILE", secret}})});
    exchange(*result.store, rank, 2);
    EXPECT_THROW(TcpStore({.endpoint = Endpoint::tcp("127.0.0.1", port), .timeout = 2s}), NetworkError)
        << "without the secret nobody gets in";
  });
  EXPECT_ERROR(ValueError,
               rendezvous("tcp://127.0.0.1:1?rank=0&world_size=1", in({{"COHORT_SECRET_FILE", folder / "none"}})),
               "none");
  EXPECT_ERROR(ValueError, rendezvous("tcp://127.0.0.1:1?rank=0&world_size=1", in({{"COHORT_TLS_CA", "x"}})),
               "TLS needs all of");
}

}  // namespace
}  // namespace cohort::test
