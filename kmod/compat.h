/* SPDX-License-Identifier: GPL-2.0 */
/* What differs between the kernels from 6.1 on: all of it is here. */
#ifndef DEEPUM_COMPAT_H
#define DEEPUM_COMPAT_H

#include <linux/eventfd.h>
#include <linux/huge_mm.h>
#include <linux/mm.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "deepum needs Linux 6.1 or later"
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
#include <linux/pfn_t.h>
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}
#endif

/* Let go of what the fault handler holds of the address space. */
static inline void deepum_release_fault_lock(struct vm_fault *vmf)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	release_fault_lock(vmf);
#else
	mmap_read_unlock(vmf->vma->vm_mm);
#endif
}

static inline void deepum_eventfd_signal(struct eventfd_ctx *eventfd)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	eventfd_signal(eventfd);
#else
	eventfd_signal(eventfd, 1);
#endif
}

static inline vm_fault_t deepum_insert_pmd(struct vm_fault *vmf, unsigned long pfn, bool write)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
	return vmf_insert_pfn_pmd(vmf, pfn, write);
#else
	return vmf_insert_pfn_pmd(vmf, pfn_to_pfn_t(pfn), write);
#endif
}

/* Whether a page middle directory entry points to a page table. */
static inline bool deepum_pmd_is_table(pmd_t pmd)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	return pmd_present(pmd) && !pmd_leaf(pmd);
#else
	return pmd_present(pmd) && !pmd_large(pmd);
#endif
}

/* The signature of huge_fault, and whether a whole block is asked for. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define DEEPUM_HUGE_FAULT(name) vm_fault_t name(struct vm_fault *vmf, unsigned int order)
#define DEEPUM_IS_BLOCK_FAULT (order == PMD_SHIFT - PAGE_SHIFT)
#else
#define DEEPUM_HUGE_FAULT(name) vm_fault_t name(struct vm_fault *vmf, enum page_entry_size size)
#define DEEPUM_IS_BLOCK_FAULT (size == PE_SIZE_PMD)
#endif

#endif
