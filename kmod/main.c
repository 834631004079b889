// SPDX-License-Identifier: GPL-2.0
/* The device, its files, and loading and unloading. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/poll.h>
#include <linux/pseudo_fs.h>
#include <linux/vmalloc.h>

#include "deepum.h"

#define DEEPUM_FS_MAGIC 0x6465756d

static struct vfsmount *deepum_mount;

static int deepum_fs_context(struct fs_context *fc)
{
	return init_pseudo(fc, DEEPUM_FS_MAGIC) ? 0 : -ENOMEM;
}

static struct file_system_type deepum_fs = {
	.name = "deepum",
	.init_fs_context = deepum_fs_context,
	.kill_sb = kill_anon_super,
};

/* Every context gets an inode, so that unmapping one's blocks never touches another's. */
static int deepum_open(struct inode *inode, struct file *file)
{
	struct inode *own = alloc_anon_inode(deepum_mount->mnt_sb);
	struct deepum_context *ctx;

	if (IS_ERR(own))
		return PTR_ERR(own);
	ctx = deepum_context_create(own);
	if (IS_ERR(ctx)) {
		iput(own);
		return PTR_ERR(ctx);
	}
	file->f_mapping = own->i_mapping;
	file->private_data = ctx;
	return 0;
}

static int deepum_release(struct inode *inode, struct file *file)
{
	deepum_context_destroy(file->private_data);
	return 0;
}

static int deepum_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct deepum_context *ctx = file->private_data;

	if (!deepum_ready(ctx))
		return -ENXIO;
	if (vma->vm_pgoff == DEEPUM_MMAP_RING >> PAGE_SHIFT) {
		vm_flags_set(vma, VM_DONTCOPY | VM_DONTDUMP | VM_DONTEXPAND);
		return remap_vmalloc_range(vma, ctx->ring.shared, 0);
	}
	return deepum_map_space(ctx, vma);
}

static __poll_t deepum_poll(struct file *file, poll_table *table)
{
	struct deepum_context *ctx = file->private_data;

	if (!deepum_ready(ctx))
		return EPOLLERR;
	return deepum_ring_poll(&ctx->ring, file, table);
}

static const struct file_operations deepum_fops = {
	.owner = THIS_MODULE,
	.open = deepum_open,
	.release = deepum_release,
	.mmap = deepum_mmap,
	.get_unmapped_area = thp_get_unmapped_area,
	.poll = deepum_poll,
	.unlocked_ioctl = deepum_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice deepum_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "deepum",
	.fops = &deepum_fops,
	.mode = 0660,
};

static int __init deepum_init(void)
{
	int error;

	BUILD_BUG_ON(sizeof(struct deepum_event) != 64);
	BUILD_BUG_ON(sizeof(struct deepum_command) != 32);
	BUILD_BUG_ON(PMD_SHIFT != DEEPUM_BLOCK_SHIFT);
	error = deepum_block_init();
	if (error)
		return error;
	deepum_mount = kern_mount(&deepum_fs);
	if (IS_ERR(deepum_mount)) {
		error = PTR_ERR(deepum_mount);
		goto no_mount;
	}
	error = deepum_uvm_init();
	if (error)
		goto no_uvm;
	error = misc_register(&deepum_device);
	if (error)
		goto no_device;
	return 0;

no_device:
	deepum_uvm_exit();
no_uvm:
	kern_unmount(deepum_mount);
no_mount:
	deepum_block_exit();
	return error;
}

static void __exit deepum_exit(void)
{
	misc_deregister(&deepum_device);
	deepum_uvm_exit();
	kern_unmount(deepum_mount);
	deepum_block_exit();
}

module_init(deepum_init);
module_exit(deepum_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Unified memory in 2 MiB blocks, with the policy in user space");
MODULE_VERSION("0.1.0");
