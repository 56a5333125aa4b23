// Adversarial modes: old-style programs (search, stencil, dynamic programming, decomposition) in small form,
// whose kernels find their arrays through structures and tables in device memory. All numbers are whole and
// generated.
#include <algorithm>

#include "adversary.cuh"

namespace {

// Structures and tables lie in memory that is pooled itself.
constexpr size_t HOLDER = 4 * MIB;

__host__ __device__ inline unsigned mixed(u64 i, u64 seed) {
    u64 x = (i + seed * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    return unsigned((x ^ x >> 29) * 0x94d049bb133111ebull >> 32);
}

__global__ void generate(unsigned *out, size_t count, u64 seed, unsigned shift) {
    for (size_t i = thread_number(); i < count; i += thread_count()) out[i] = mixed(i, seed) >> shift;
}

template <class T>
u64 weighed_words(const std::vector<T> &words) {
    u64 sum = 0;
    for (size_t i = 0; i < words.size(); ++i) sum += u64(words[i]) * (2 * i + 1);
    return sum;
}

template <class T>
void see_words(const char *what, const T *data, const std::vector<T> &expected) {
    std::vector<T> got(expected.size());
    CHECK(cudaMemcpy(got.data(), data, got.size() * sizeof(T), cudaMemcpyDeviceToHost));
    see(what, weighed_words(got), weighed_words(expected));
}

// Breadth-first search
// ---------------------------------------------------------------------------------------

constexpr unsigned VERTICES = 4 * MIB, DEGREE = 8, UNSEEN = ~0u;

struct Graph {
    unsigned *edges, *cost;
    unsigned char *frontier, *next;
    unsigned *more;
};

__global__ void make_edges(unsigned *edges) {
    for (size_t i = thread_number(); i < size_t(VERTICES) * DEGREE; i += thread_count())
        edges[i] = mixed(i, 3) % VERTICES;
}

// Threads that meet at a vertex write the same.
__global__ void expand(Graph *graph, unsigned level) {
    for (size_t v = thread_number(); v < VERTICES; v += thread_count()) {
        if (!graph->frontier[v]) continue;
        graph->frontier[v] = 0;
        for (unsigned j = 0; j < DEGREE; ++j) {
            unsigned to = graph->edges[v * DEGREE + j];
            if (graph->cost[to] != UNSEEN) continue;
            graph->cost[to] = level;
            graph->next[to] = 1;
            *graph->more = 1;
        }
    }
}

__global__ void swap_frontiers(Graph *graph) {
    unsigned char *frontier = graph->frontier;
    graph->frontier = graph->next;
    graph->next = frontier;
}

std::vector<unsigned> searched() {
    std::vector<unsigned> cost(VERTICES, UNSEEN), now = {0}, next;
    cost[0] = 0;
    for (unsigned level = 1; !now.empty(); ++level, now.swap(next), next.clear())
        for (size_t v : now)
            for (unsigned j = 0; j < DEGREE; ++j) {
                unsigned to = mixed(v * DEGREE + j, 3) % VERTICES;
                if (cost[to] != UNSEEN) continue;
                cost[to] = level;
                next.push_back(to);
            }
    return cost;
}

void bfs() {
    Graph host;
    Graph *graph = (Graph *)device_alloc(HOLDER);
    host.edges = device_array<unsigned>(size_t(VERTICES) * DEGREE);
    host.cost = device_array<unsigned>(VERTICES);
    host.frontier = device_array<unsigned char>(VERTICES);
    host.next = device_array<unsigned char>(VERTICES);
    host.more = device_array<unsigned>(1);
    make_edges<<<BLOCKS, THREADS>>>(host.edges);
    LAUNCHED();
    CHECK(cudaMemset(host.cost, 0xff, VERTICES * sizeof(unsigned)));
    CHECK(cudaMemset(host.cost, 0, sizeof(unsigned)));
    CHECK(cudaMemset(host.frontier, 0, VERTICES));
    CHECK(cudaMemset(host.next, 0, VERTICES));
    CHECK(cudaMemset(host.frontier, 1, 1));
    CHECK(cudaMemcpy(graph, &host, sizeof host, cudaMemcpyHostToDevice));
    Ballast ballast(total_bytes - size_t(VERTICES) * (DEGREE * 4 + 6));
    unsigned more = 1;
    for (unsigned level = 1; more && level < 100; ++level) {
        CHECK(cudaMemset(host.more, 0, sizeof more));
        expand<<<BLOCKS, THREADS>>>(graph, level);
        swap_frontiers<<<1, 1>>>(graph);
        LAUNCHED();
        ballast.use(7);
        CHECK(cudaMemcpy(&more, host.more, sizeof more, cudaMemcpyDeviceToHost));
    }
    see_words("costs", host.cost, searched());
    ballast.end();
    for (void *data : {(void *)graph, (void *)host.edges, (void *)host.cost, (void *)host.frontier,
                       (void *)host.next, (void *)host.more})
        device_free(data);
}

// A stencil of heat -----------------------------------------------------------------------------------------

constexpr unsigned WIDE = 4096;

struct Chip {
    unsigned **heat[2];
    const unsigned *power;
};

__device__ Chip chip;

__global__ void make_rows(unsigned **rows, unsigned *data) {
    for (size_t i = thread_number(); i < WIDE; i += thread_count()) rows[i] = data + i * WIDE;
}

__host__ __device__ inline unsigned warmed(unsigned own, unsigned up, unsigned down, unsigned left,
                                           unsigned right, unsigned power) {
    return (4 * own + up + down + left + right + power) / 8;
}

__global__ void warm(unsigned from) {
    unsigned *const *rows = chip.heat[from];
    for (size_t i = thread_number(); i < size_t(WIDE) * WIDE; i += thread_count()) {
        unsigned r = unsigned(i / WIDE), c = unsigned(i % WIDE);
        chip.heat[1 - from][r][c] =
            warmed(rows[r][c], rows[r ? r - 1 : r][c], rows[r < WIDE - 1 ? r + 1 : r][c],
                   rows[r][c ? c - 1 : c], rows[r][c < WIDE - 1 ? c + 1 : c], chip.power[i]);
    }
}

std::vector<unsigned> warmed_chip(unsigned steps) {
    const size_t cells = size_t(WIDE) * WIDE;
    std::vector<unsigned> heat(cells), next(cells), power(cells);
    for (size_t i = 0; i < cells; ++i) {
        heat[i] = mixed(i, 11) >> 8;
        power[i] = mixed(i, 12) >> 12;
    }
    for (unsigned step = 0; step < steps; ++step, heat.swap(next))
        for (size_t r = 0; r < WIDE; ++r) {
            const unsigned *row = &heat[r * WIDE], *up = r ? row - WIDE : row,
                           *down = r < WIDE - 1 ? row + WIDE : row;
            for (size_t c = 0; c < WIDE; ++c)
                next[r * WIDE + c] = warmed(row[c], up[c], down[c], row[c ? c - 1 : c],
                                            row[c < WIDE - 1 ? c + 1 : c], power[r * WIDE + c]);
        }
    return heat;
}

void hotspot() {
    const unsigned steps = 16;
    const size_t cells = size_t(WIDE) * WIDE;
    unsigned *data[3], **tables[2];
    for (unsigned *&array : data) array = device_array<unsigned>(cells);
    Ballast ballast(total_bytes - 3 * cells * 4 - 2 * HOLDER);
    for (unsigned k : {0u, 1u}) {
        tables[k] = (unsigned **)device_alloc(HOLDER);
        make_rows<<<16, THREADS>>>(tables[k], data[k]);
        LAUNCHED();
    }
    generate<<<BLOCKS, THREADS>>>(data[0], cells, 11, 8);
    generate<<<BLOCKS, THREADS>>>(data[2], cells, 12, 12);
    LAUNCHED();
    Chip host = {{tables[0], tables[1]}, data[2]};
    CHECK(cudaMemcpyToSymbol(chip, &host, sizeof host));
    for (unsigned step = 0; step < steps; ++step) {
        warm<<<BLOCKS, THREADS>>>(step % 2);
        LAUNCHED();
        ballast.use(5);
    }
    see_words("heat", data[0], warmed_chip(steps));
    ballast.end();
    for (void *array :
         {(void *)data[0], (void *)data[1], (void *)data[2], (void *)tables[0], (void *)tables[1]})
        device_free(array);
}

// The cheapest way through a wall ---------------------------------------------------------------------------

constexpr unsigned COLUMNS = MIB, ROWS = 128;

// The first ROWS addresses are the wall's rows; then come the two rows of results.
__global__ void climb(unsigned *const *rows, unsigned row) {
    const unsigned *wall = rows[row], *from = rows[ROWS + (row + 1) % 2];
    unsigned *to = rows[ROWS + row % 2];
    for (size_t i = thread_number(); i < COLUMNS; i += thread_count()) {
        unsigned best = from[i];
        if (i > 0) best = min(best, from[i - 1]);
        if (i < COLUMNS - 1) best = min(best, from[i + 1]);
        to[i] = wall[i] + best;
    }
}

std::vector<unsigned> climbed() {
    std::vector<unsigned> from(COLUMNS), to(COLUMNS);
    for (size_t i = 0; i < COLUMNS; ++i) from[i] = mixed(i, 0) >> 24;
    for (unsigned row = 1; row < ROWS; ++row, from.swap(to))
        for (size_t i = 0; i < COLUMNS; ++i) {
            unsigned best =
                std::min(from[i], std::min(from[i ? i - 1 : i], from[i < COLUMNS - 1 ? i + 1 : i]));
            to[i] = (mixed(i, row) >> 24) + best;
        }
    return from;
}

void pathfinder() {
    std::vector<unsigned *> rows;
    for (unsigned row = 0; row < ROWS + 2; ++row) {
        rows.push_back(device_array<unsigned>(COLUMNS));
        // The first row of results is the first row of the wall.
        generate<<<BLOCKS, THREADS>>>(rows[row], COLUMNS, row < ROWS ? row : 0, 24);
        LAUNCHED();
    }
    unsigned **table = (unsigned **)device_alloc(HOLDER);
    CHECK(cudaMemcpy(table, rows.data(), rows.size() * sizeof(unsigned *), cudaMemcpyHostToDevice));
    Ballast ballast(total_bytes - (ROWS + 3) * size_t(COLUMNS) * 4);
    for (unsigned row = 1; row < ROWS; ++row) {
        climb<<<BLOCKS, THREADS>>>(table, row);
        LAUNCHED();
        if (row % 4 == 0) ballast.use(3);
    }
    see_words("the cheapest ways", rows[ROWS + (ROWS - 1) % 2], climbed());
    ballast.end();
    for (unsigned *row : rows) device_free(row);
    device_free(table);
}

// Decomposition of a matrix into L and U, modulo a prime ----------------------------------------------------

constexpr unsigned ORDER = 2048, PANEL = 256;
constexpr u64 PRIME = 2147483647;

// What the decomposition must find: L below the diagonal, U on it and above.
__host__ __device__ inline u64 factor_at(unsigned row, unsigned column) {
    return mixed(u64(row) * ORDER + column, 21) % (PRIME - 1) + 1;
}

__device__ inline unsigned *element(unsigned *const *panels, unsigned row, unsigned column) {
    return panels[row / PANEL] + size_t(row % PANEL) * ORDER + column;
}

__global__ void multiply_factors(unsigned *const *panels) {
    for (size_t i = thread_number(); i < size_t(ORDER) * ORDER; i += thread_count()) {
        unsigned row = unsigned(i / ORDER), column = unsigned(i % ORDER);
        // L has ones on its diagonal.
        u64 sum = row <= column ? factor_at(row, column) : 0;
        for (unsigned k = 0; k < row && k <= column; ++k)
            sum = (sum + factor_at(row, k) * factor_at(k, column)) % PRIME;
        *element(panels, row, column) = unsigned(sum % PRIME);
    }
}

__global__ void divide_column(unsigned *const *panels, unsigned k) {
    u64 inverse = 1, power = *element(panels, k, k);
    for (u64 left = PRIME - 2; left; left >>= 1, power = power * power % PRIME)
        if (left & 1) inverse = inverse * power % PRIME;
    for (size_t row = k + 1 + thread_number(); row < ORDER; row += thread_count()) {
        unsigned *at = element(panels, unsigned(row), k);
        *at = unsigned(*at * inverse % PRIME);
    }
}

__global__ void subtract_row(unsigned *const *panels, unsigned k) {
    unsigned side = ORDER - 1 - k;
    for (size_t i = thread_number(); i < size_t(side) * side; i += thread_count()) {
        unsigned row = k + 1 + unsigned(i / side), column = k + 1 + unsigned(i % side);
        u64 product = u64(*element(panels, row, k)) * *element(panels, k, column) % PRIME;
        unsigned *at = element(panels, row, column);
        *at = unsigned((*at + PRIME - product) % PRIME);
    }
}

void lud() {
    const unsigned count = ORDER / PANEL;
    const size_t words = size_t(PANEL) * ORDER;
    std::vector<unsigned *> host;
    unsigned **panels = (unsigned **)device_alloc(HOLDER);
    Ballast ballast(total_bytes - count * words * 4 - HOLDER);
    for (unsigned k = 0; k < count; ++k) host.push_back(device_array<unsigned>(words));
    CHECK(cudaMemcpy(panels, host.data(), count * sizeof(unsigned *), cudaMemcpyHostToDevice));
    multiply_factors<<<BLOCKS * 4, THREADS>>>(panels);
    LAUNCHED();
    for (unsigned k = 0; k + 1 < ORDER; ++k) {
        divide_column<<<8, THREADS>>>(panels, k);
        subtract_row<<<BLOCKS, THREADS>>>(panels, k);
        LAUNCHED();
        if (k % 128 == 0) ballast.use(9);
    }
    for (unsigned panel = 0; panel < count; ++panel) {
        std::vector<unsigned> expected(words);
        for (size_t i = 0; i < words; ++i)
            expected[i] = unsigned(factor_at(panel * PANEL + unsigned(i / ORDER), unsigned(i % ORDER)));
        see_words("a panel", host[panel], expected);
    }
    ballast.end();
    for (unsigned *panel : host) device_free(panel);
    device_free(panels);
}

// Alignment of two sequences --------------------------------------------------------------------------------

constexpr unsigned LENGTH = 8192;
constexpr int PENALTY = 10;

struct Alignment {
    int *score;
    const unsigned *likeness;
};

__host__ __device__ inline int border(int i, int j) {
    return i < 0 ? -(j + 1) * PENALTY : -(i + 1) * PENALTY;
}

__device__ inline int score_at(const Alignment &all, int i, int j) {
    return i < 0 || j < 0 ? border(i, j) : all.score[size_t(i) * LENGTH + j];
}

// A diagonal of tiles of 32 by 32; a warp works on each. `holder` leads to the structure, which leads to the
// arrays.
__global__ void align(const Alignment *const *holder, unsigned diagonal, unsigned first) {
    __shared__ int tile[33][33];
    const Alignment all = **holder;
    int row = int(first + blockIdx.x) * 32, column = int(diagonal - first - blockIdx.x) * 32,
        me = threadIdx.x;
    tile[0][me + 1] = score_at(all, row - 1, column + me);
    tile[me + 1][0] = score_at(all, row + me, column - 1);
    if (me == 0) tile[0][0] = score_at(all, row - 1, column - 1);
    __syncwarp();
    for (int step = 0; step < 63; ++step) {
        int j = step - me;
        if (j >= 0 && j < 32) {
            int like = int(all.likeness[size_t(row + me) * LENGTH + column + j]) - 8;
            int best = max(tile[me][j] + like, max(tile[me + 1][j], tile[me][j + 1]) - PENALTY);
            tile[me + 1][j + 1] = best;
        }
        __syncwarp();
    }
    for (int i = 0; i < 32; ++i) all.score[size_t(row + i) * LENGTH + column + me] = tile[i + 1][me + 1];
}

u64 aligned() {
    std::vector<int> last(LENGTH), now(LENGTH);
    u64 sum = 0;
    for (int j = 0; j < int(LENGTH); ++j) last[j] = border(-1, j);
    for (int i = 0; i < int(LENGTH); ++i, last.swap(now))
        for (int j = 0; j < int(LENGTH); ++j) {
            size_t at = size_t(i) * LENGTH + j;
            int corner = j ? last[j - 1] : i ? border(i - 1, -1) : 0, left = j ? now[j - 1] : border(i, -1);
            int like = int(mixed(at, 31) >> 28) - 8;
            now[j] = std::max(corner + like, std::max(left, last[j]) - PENALTY);
            sum += u64(now[j]) * (2 * at + 1);
        }
    return sum;
}

void needle() {
    const size_t cells = size_t(LENGTH) * LENGTH;
    const unsigned tiles = LENGTH / 32;
    Alignment **holder = (Alignment **)device_alloc(HOLDER), *on_device = (Alignment *)device_alloc(HOLDER);
    unsigned *likeness = device_array<unsigned>(cells);
    Ballast ballast(total_bytes - 2 * cells * 4 - 2 * HOLDER);
    Alignment host = {device_array<int>(cells), likeness};
    generate<<<BLOCKS, THREADS>>>(likeness, cells, 31, 28);
    LAUNCHED();
    CHECK(cudaMemcpy(on_device, &host, sizeof host, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(holder, &on_device, sizeof on_device, cudaMemcpyHostToDevice));
    for (unsigned diagonal = 0; diagonal < 2 * tiles - 1; ++diagonal) {
        unsigned first = diagonal < tiles ? 0 : diagonal - tiles + 1, last = std::min(diagonal, tiles - 1);
        align<<<last - first + 1, 32>>>(holder, diagonal, first);
        LAUNCHED();
        if (diagonal % 32 == 0) ballast.use(5);
    }
    std::vector<int> got(cells);
    CHECK(cudaMemcpy(got.data(), host.score, cells * sizeof(int), cudaMemcpyDeviceToHost));
    see("scores", weighed_words(got), aligned());
    ballast.end();
    for (void *data : {(void *)host.score, (void *)likeness, (void *)on_device, (void *)holder})
        device_free(data);
}

}  // namespace

std::vector<Mode> classic_modes() {
    return {{"bfs", bfs}, {"hotspot", hotspot}, {"pathfinder", pathfinder}, {"lud", lud}, {"needle", needle}};
}
