// The kernels of one .cu, for ctypes: g++ -DSOURCE='<multiply.cu>' -DLAUNCHERS='…'.
#include SOURCE
LAUNCHERS
