// Several parts of a layer in one kernel: the headers of a part are included in a namespace of its
// own, with DSV_PART naming whose parameters they take (MAIN: DSV_MAIN_DIMS for DSV_DIMS), and
// then define device functions and no kernels. This file comes before each part's headers.
#define DSV_PASTE_WORDS(part, name) DSV_##part##_##name
#define DSV_PASTE(part, name) DSV_PASTE_WORDS(part, name)
#define DSV_OF_PART(name) DSV_PASTE(DSV_PART, name)
#define DSV_DIMS DSV_OF_PART(DIMS)
#define DSV_VALUE DSV_OF_PART(VALUE)
#define DSV_VALUE_DIMS DSV_OF_PART(VALUE_DIMS)
#define DSV_GROUP DSV_OF_PART(GROUP)
#define DSV_SCALE DSV_OF_PART(SCALE)
#define DSV_SCALE_PADDING DSV_OF_PART(SCALE_PADDING)
#define DSV_ENTRIES DSV_OF_PART(ENTRIES)
#define DSV_PAGE_BYTES DSV_OF_PART(PAGE_BYTES)
#define DSV_DATA_ROW DSV_OF_PART(DATA_ROW)
#define DSV_SCALE_ROW DSV_OF_PART(SCALE_ROW)
#define DSV_PAIRED DSV_OF_PART(PAIRED)
#define DSV_OVERLAP DSV_OF_PART(OVERLAP)
#define DSV_RATIO DSV_OF_PART(RATIO)
#define DSV_STATE_ROWS DSV_OF_PART(STATE_ROWS)
#define DSV_HADAMARD DSV_OF_PART(HADAMARD)
#define DSV_ROPE_PAIRS DSV_OF_PART(ROPE_PAIRS)
#define DSV_ROPE_TABLE DSV_OF_PART(ROPE_TABLE)
#define DSV_SPLIT DSV_OF_PART(SPLIT)
#define DSV_AHEAD DSV_OF_PART(AHEAD)
#define DSV_CLUSTER_BYTES DSV_OF_PART(CLUSTER_BYTES)
#undef DSV_FOLD_CUH
#undef DSV_FORMAT_CUH
#undef DSV_HADAMARD_CUH
#undef DSV_ROWS_CUH
