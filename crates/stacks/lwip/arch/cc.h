/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What lwIP wants to know of the compiler: nothing. Chance would differ from run to run. */
#ifndef FAIRLEAD_LWIP_CC_H
#define FAIRLEAD_LWIP_CC_H

#define LWIP_RAND() 7u

#endif
