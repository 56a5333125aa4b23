// Programs that are hard on a pager: pages reached in ways that no launch shows, work that waits for other
// work, and everything the driver does at odd moments, over more memory than the limit.
//
//     adversary MODE|all|list [GiB in all]
//
// Prints `result MODE CHECKSUM`, the same as without the library, and `bytes N`. The modes lie in other
// files:
//
//     nvcc -O2 -std=c++17 -arch=native -t 0 -o adversary adversary.cu
//         adversary_{common,pointers,streams,waits,launches,views,classic,load}.cu
#include "adversary.cuh"

std::vector<Mode> pointer_modes(), stream_modes(), wait_modes();
std::vector<Mode> launch_modes(), view_modes(), classic_modes(), load_modes();

int main(int argc, char **argv) {
    std::vector<Mode> modes;
    for (auto part : {pointer_modes, stream_modes, wait_modes, launch_modes, view_modes, classic_modes,
                      load_modes}) {
        std::vector<Mode> more = part();
        modes.insert(modes.end(), more.begin(), more.end());
    }
    return run_modes(argc, argv, modes);
}
